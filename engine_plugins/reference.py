"""References to plug-ins in the settings: "NAME:ARGUMENT". Pure.

A colon behind a bare name makes the difference: no name of models.toml and no Hugging Face id has
one, "openai:" means another server, and a path with a colon before its first slash is written with
"./" in front. One letter before the colon is a drive of Windows.
"""

import re
from dataclasses import dataclass
from typing import Final

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]+")
"""Names that a plug-in may have."""

RESERVED: Final = frozenset({"openai"})
"""Prefixes with another meaning."""


@dataclass(frozen=True, slots=True)
class PluginReference:
    """A plug-in, and what it is asked to load."""

    name: str
    """Name of the entry point."""
    argument: str
    """The plug-in's own name for a model or voice, a path, or whatever it takes; may be empty."""

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}"


def parse_plugin(reference: str) -> PluginReference | None:
    """The plug-in that a name of the settings means; None for any other name."""
    name, colon, argument = reference.partition(":")
    if not colon or not NAME.fullmatch(name) or name in RESERVED:
        return None
    return PluginReference(name, argument)


def is_plugin(reference: str) -> bool:
    """True if a name of the settings means a plug-in."""
    return parse_plugin(reference) is not None
