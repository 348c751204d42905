"""Reload of the settings: which of the new ones a running service can take, and which need a
restart.

Pure: the settings of the start, those in effect and those just read in; those to go on with out.
Whatever a model, a port, a device or the memory of the process was made for stays as it is until
the next start. The rest holds for calls that begin from now on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final

import languages

from .schema import SECTIONS, AgentProfile, Config
from .tools import MCP_PREFIX

AT_RUN_TIME: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "agent": frozenset(
            {
                "language",
                "session_limit_s",
                "lead_ms",
                "guess",
                "preview",
                "first_clause",
                "pace_ms",
                "early_openers",
                "idle_prompt_ms",
                "idle_prompt",
                "idle_hangup_ms",
                "tool_result_chars",
            }
        ),
        "latency_budget": frozenset({"total_ms", "admission"}),
        "telephony": frozenset(
            {"numbers", "lead_ms", "limit_s", "idle_prompt_ms", "idle_hangup_ms"}
        ),
    }
)
"""Settings outside of `[agents.NAME]` that are applied without a restart. `agent.max_sessions` is
too, up to its value at the start: the engine and the sockets were made for that many calls."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Result of one reload."""

    config: Config
    """Settings of the calls to come."""
    changed: tuple[str, ...]
    """Names of the settings that changed, `agents.NAME` for an agent that is new or gone."""
    needs_restart: tuple[str, ...]
    """Names of the settings that differ from those in effect and need a restart."""


def reload_config(started: Config, current: Config, new: Config) -> Reload:
    """What a service that began with `started` makes of `new`, in place of `current`."""
    changed: list[str] = []
    kept: list[str] = []
    sections = {}
    for section in SECTIONS:
        now, then = getattr(current, section), getattr(new, section)
        values: dict[str, Any] = {}
        for name in _different(now, then):
            key = f"{section}.{name}"
            if _is_applied(key, started, current, new):
                values[name] = getattr(then, name)
                changed.append(key)
            else:
                kept.append(key)
        sections[section] = replace(now, **values)
    kept += [f"mcp.{name}" for name in _different_keys(current.mcp, new.mcp)]
    kept += [f"webhooks.{name}" for name in _different_keys(current.webhooks, new.webhooks)]
    agents = {}
    for name, profile in new.agents.items():
        agents[name], lacking = _usable(started, new, name, profile, current.agents.get(name))
        kept += lacking
    for name in _different_keys(current.agents, agents):
        if name in agents and name in current.agents:
            changed += [
                f"agents.{name}.{each}" for each in _different(current.agents[name], agents[name])
            ]
        else:
            changed.append(f"agents.{name}")
    is_own = ("agents.", *changed)
    origins = {key: text for key, text in current.origins.items() if not key.startswith(is_own)}
    origins |= {key: text for key, text in new.origins.items() if key.startswith(is_own)}
    config = replace(
        current, **sections, agents=MappingProxyType(agents), origins=MappingProxyType(origins)
    )
    return Reload(config, tuple(changed), tuple(kept))


def _is_applied(key: str, started: Config, current: Config, new: Config) -> bool:
    section, _, name = key.partition(".")
    if key == "agent.max_sessions":
        return new.agent.max_sessions <= started.agent.max_sessions
    if key == "agent.language":  # its models are there, or calls of it could not begin
        return _has_models(started, new.agent.language or new.own_language)
    return name in AT_RUN_TIME.get(section, ())


def _has_models(started: Config, language: str) -> bool:
    """True if calls in a language, or in one that is to be found, have models since the start."""
    needed = set(languages.PROFILES) if language == languages.AUTO else {language}
    return needed <= set(started.call_languages)


def _usable(
    started: Config, new: Config, name: str, profile: AgentProfile, old: AgentProfile | None
) -> tuple[AgentProfile, list[str]]:
    """The agent with what the models, voices and MCP servers of the start can do for it, and the
    names of its settings that need a restart."""
    lacking: list[str] = []
    before = old or started.agents["default"]
    if profile.voice is not None and profile.voice not in started.voices:
        lacking.append(f"agents.{name}.voice")
        profile = replace(profile, voice=before.voice)
    if profile.language is not None and not _has_models(started, profile.language):
        lacking.append(f"agents.{name}.language")
        profile = replace(profile, language=before.language)
    connected = {
        source for each in started.agents.values() for source in each.server_tools
    }  # only to those does the service connect
    far = [
        source
        for source in profile.server_tools
        if source.startswith(MCP_PREFIX) and source not in connected
    ]
    if far:
        lacking.append(f"agents.{name}.server_tools")
        near = tuple(each for each in profile.server_tools if each not in far)
        profile = replace(profile, server_tools=near)
    return profile, lacking


def _different(now: Any, then: Any) -> Iterator[str]:
    """Names of the fields that differ in two tables of settings."""
    for item in fields(now):
        if getattr(now, item.name) != getattr(then, item.name):
            yield item.name


def _different_keys(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    return [key for key in {**now, **then} if now.get(key) != then.get(key)]
