"""Command line arguments for settings."""

import argparse

from agent.config.presets import PRESETS
from agent.errors import HalfsecError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every command that reads the settings."""
    parser.add_argument("--config", metavar="FILE", help="settings file (halfsec.toml)")
    parser.add_argument(
        "--preset", help=f"auto (the default: by this machine), {', '.join(PRESETS)}"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any other setting; may be repeated",
    )


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that start or check a server."""
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", help="port to listen on (8080; 0 takes a free one)")
    parser.add_argument(
        "--tls-self-signed", action="store_true", help="https with a certificate of its own making"
    )


def flags_of(options: argparse.Namespace) -> dict[str, object]:
    """The settings among the parsed arguments, by key. Raises HalfsecError."""
    flags: dict[str, object] = {}
    for assignment in options.set:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise HalfsecError(f"--set takes SECTION.KEY=VALUE, not {assignment!r}.")
        flags[key.strip()] = value
    if getattr(options, "tls_self_signed", False):
        flags["access.tls_self_signed"] = True
    for name in ("host", "port", "preset"):
        if getattr(options, name, None) is not None:
            flags[f"agent.{name}"] = getattr(options, name)
    return flags
