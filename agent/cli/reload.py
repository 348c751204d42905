"""`halfsec reload`: have the server on this machine read its settings anew."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from agent.config.layers import load_config
from agent.config.local_urls import RELOAD_PATH, local_http_url
from agent.config.schema import Config
from agent.config.sources import read_config
from agent.errors import ConfigError, HalfsecError
from agent.http.auth.local_key import local_key
from agent.http.auth.tls import certificate_of, client_context

from .settings_arguments import add_address, add_arguments, flags_of

TIMEOUT_S: Final = 30.0
"""Time limit of the request, in which the server loads new files of tools with all that they
import."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0. Raises HalfsecError where the server refused the settings, or
    there is none."""
    options = _parser().parse_args(argv)
    flags = flags_of(options)
    problem: ConfigError | None = None
    try:
        config = read_config(flags, options.config)
    except ConfigError as error:  # the server says so too, in its log
        problem, config = error, load_config(flags, os.environ)
    answer = _asked(config, problem)
    body = _object_in(answer)
    if answer.status_code != 200:
        told = body.get("error")
        message = told.get("message") if isinstance(told, dict) else None
        reason = message or f"the server answers {answer.status_code}"
        raise HalfsecError(f"the settings stay as they were: {reason}")
    changed, kept = body.get("changed", ()), body.get("needs_restart", ())
    print(f"Changed for new calls: {', '.join(changed) or 'nothing'}.")
    if kept:
        print(f"Not applied, needs a restart: {', '.join(kept)}.", file=sys.stderr)
    return 0


def _asked(config: Config, problem: ConfigError | None) -> httpx.Response:
    """The answer of the server that these settings describe. Raises HalfsecError; `problem` where
    the settings could not be read."""
    url = local_http_url(config) + RELOAD_PATH
    key = local_key(config.agent.port)
    certificate = certificate_of(config)
    verify = True if certificate is None else client_context(certificate)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False, verify=verify) as http:
            return http.post(url, headers=headers)
    except httpx.HTTPError as error:
        if problem is not None:
            raise problem from None
        reason = str(error) or type(error).__name__
        raise HalfsecError(
            f"no server answers at {url} ({reason}); give its port with --port, or the settings "
            "file that it was started with."
        ) from None


def _object_in(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec reload",
        description="Have the server on this machine read its settings file anew, for new calls.",
        epilog="example: halfsec reload --config halfsec.toml",
    )
    add_address(parser)
    add_arguments(parser)
    return parser
