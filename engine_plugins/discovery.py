"""Finds and calls the entry points of plug-ins; says what is wrong with those that can't be used.

Nothing of a plug-in is imported before its name is asked for. What goes wrong in other people's
code, at import, in the factory, or because the engine is not what it should be, ends as
`PluginError`: a sentence for the person who chose the plug-in, with its package and the remedy.
"""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from .reference import NAME, RESERVED, PluginReference

GUIDE: Final = "docs/how-to/engines.md"

Member = Literal["method", "attribute"]


class PluginError(RuntimeError):
    """A plug-in that is missing or can't be used. Says which package is at fault and what to do."""


class PluginKind(StrEnum):
    """What a plug-in brings."""

    RECOGNIZER = "recognizer"
    VOICE = "voice"
    CHAT = "chat"

    @property
    def group(self) -> str:
        """Group of the entry points."""
        return f"halfsec.{self.value}s"

    @property
    def setting(self) -> str:
        """Setting that names one."""
        return {"recognizer": "asr.model", "voice": "tts.voice", "chat": "llm_engine.model"}[self]


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point of an installed package."""

    kind: PluginKind
    entry: importlib.metadata.EntryPoint

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def package(self) -> str:
        """Name of the package that brings it."""
        return self.entry.dist.name if self.entry.dist is not None else "an unknown package"

    def __str__(self) -> str:
        version = "" if self.entry.dist is None else f" {self.entry.dist.version}"
        return (
            f"the {self.kind} plug-in {self.name!r} ({self.entry.value} of {self.package}{version})"
        )


def installed_plugins(kind: PluginKind) -> list[Plugin]:
    """Plug-ins of the installed packages, by name. Imports none of them."""
    entries = importlib.metadata.entry_points(group=kind.group)
    return sorted((Plugin(kind, entry) for entry in entries), key=lambda plugin: plugin.name)


def find_plugin(kind: PluginKind, reference: PluginReference) -> Plugin:
    """The plug-in that a reference means. Imports nothing of it.

    Raises PluginError where there is none of this name, or more than one.
    """
    installed = installed_plugins(kind)
    found = [plugin for plugin in installed if plugin.name == reference.name]
    if len(found) > 1:
        packages = [plugin.package for plugin in found]
        raise PluginError(
            f"{_and(packages)} both bring a {kind} plug-in called {reference.name!r}, and "
            f"{kind.setting} can mean only one. Uninstall the other: pip uninstall {packages[-1]}"
        )
    if found:
        return found[0]
    names = ", ".join(plugin.name for plugin in installed) or "none"
    raise PluginError(
        f"There is no {kind} plug-in {reference.name!r}, which {kind.setting} = "
        f'"{reference}" asks for; installed are: {names}. Install the package that brings it '
        f"into this environment (it has an entry point in {kind.group}), or, if a path is meant, "
        f"write ./{reference}"
    )


def load_plugin(
    kind: PluginKind, reference: PluginReference, options: object, members: Mapping[str, Member]
) -> Any:
    """Import a plug-in and have it make an engine: `factory(argument, options)`.

    `members`: what the engine must have. Raises PluginError.
    """
    plugin = find_plugin(kind, reference)
    factory = _imported(plugin)
    try:
        engine = factory(reference.argument, options)
    except (Exception, SystemExit) as error:
        hint = f" It is called with two arguments, see {GUIDE}." * isinstance(error, TypeError)
        raise PluginError(
            f"{_capital(plugin)} can't load {reference.argument!r}: {said(error)}.{hint}"
        ) from error
    require_members(str(plugin), engine, members)
    return engine


def require_members(owner: str, engine: object, members: Mapping[str, Member]) -> None:
    """Raise PluginError where an engine lacks members. `owner`: whose engine it is, in a
    sentence."""
    lacking = [name for name, member in members.items() if not _has(engine, name, member)]
    if lacking:
        shown = [f"`{name}()`" if members[name] == "method" else f"`{name}`" for name in lacking]
        raise PluginError(
            f"{_capital(owner)} makes a {type(engine).__name__}, which lacks {_and(shown)}: see "
            f"{GUIDE} for what it must have."
        )


def usable_name(name: str) -> bool:
    """True if the settings can name a plug-in so."""
    return bool(NAME.fullmatch(name)) and name not in RESERVED


def said(error: BaseException) -> str:
    """An error of other people's code, on one line without a full stop."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _imported(plugin: Plugin) -> Callable[[str, object], object]:
    try:
        factory = plugin.entry.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{_capital(plugin)} can't be imported: {said(error)}. Repair the package ("
            f"pip install --force-reinstall {plugin.package}), or choose another "
            f"{plugin.kind.setting}"
        ) from error
    if not callable(factory):
        raise PluginError(
            f"{_capital(plugin)} is a {type(factory).__name__}, not a function: its entry point "
            f"must name one that makes the engine, see {GUIDE}."
        )
    call: Callable[[str, object], object] = factory
    return call


def _has(engine: object, name: str, member: Member) -> bool:
    try:
        value = getattr(engine, name)
    except Exception:  # a property that raises is as good as none
        return False
    return callable(value) or member == "attribute"


def _capital(text: object) -> str:
    sentence = str(text)
    return sentence[:1].upper() + sentence[1:]


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
