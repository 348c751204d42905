"""Initial agent and settings of a session, with the session that a client secret binds."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import languages
from agent.config.remote_models import shown_model
from agent.config.schema import DEFAULT_AGENT, AgentProfile, Config
from agent.http.auth.principal import Principal, agent_for
from agent.http.refusal import HttpRefusal
from agent.realtime.protocol.fields import Fields
from agent.realtime.protocol.fixed_fields import fixed_fields
from agent.realtime.protocol.session_update import merge_session
from agent.session.api.settings import SessionSettings
from agent.session.response.opening_clause import shaped

if TYPE_CHECKING:
    from .call_state import CallState

NO_AGENT: Final = HttpRefusal(
    403, "None of the agents that this key is for is here.", "insufficient_permissions"
)

IN_ENGLISH: Final = "Always answer in English."
"""For an English call of an agent with another language; others need no such sentence."""


@dataclass(frozen=True, slots=True)
class SessionStart:
    agent: str
    profile: AgentProfile
    settings: SessionSettings
    model: str
    """Name reported as the session's model."""
    fixed: frozenset[str] = frozenset()
    """Fields that the client can't change, as `fixed_fields` returns them."""


def session_start(
    config: Config, principal: Principal, wanted: str | None, intent: str | None = None
) -> SessionStart | HttpRefusal:
    """Initial state for a client that requests the agent `wanted`. The principal's bound session is
    applied. With the intent "transcription" no response is generated.

    Raises ClientError for a bound session that can't be served; those of client secrets have been
    through here when they were made.
    """
    agent = agent_for(principal, wanted, config)
    if agent is None:
        return NO_AGENT
    _, given = config.profile(agent)
    profile = _localized(config, agent, given, config.language(given))
    settings = SessionSettings(
        transcribes_only=intent == "transcription",
        agent=agent,
        instructions=profile.instructions,
        voice=shown_model(config.voice(profile)),
        agent_language=(
            languages.AUTO if config.finds_language(profile) else config.language(profile)
        ),
        pace_ms=config.pace_ms(profile),
        budget_ms=config.budget_ms(profile),
        tools=profile.tools,
    )
    if principal.session is None:
        return SessionStart(agent, profile, settings, wanted or agent)
    bound = dict(principal.session)
    settings = merge_session(settings, Fields(bound, "session"))
    if settings.language != config.language(given):
        own = profile.instructions
        profile = _localized(config, agent, given, settings.language)
        if settings.instructions == own:
            settings = settings.changed(instructions=profile.instructions)
    model = bound.get("model") or wanted or agent
    return SessionStart(agent, profile, settings, str(model), fixed_fields(bound))


def instructions_in(config: Config, agent: str, language: str) -> str:
    """The agent's own instructions in calls of a language."""
    agent, profile = config.profile(agent)
    return _localized(config, agent, profile, language).instructions


def _localized(config: Config, agent: str, profile: AgentProfile, language: str) -> AgentProfile:
    """The agent with a prompt for a language. A preset's examples, and how it wants an answer to
    begin, are English: in other languages they are left out, and the model is told to answer in
    the call's."""
    known = languages.profile_of(language)
    if known is None or not known.answer_in:
        if known is languages.ENGLISH and config.language(profile) != known.code:
            instructions = f"{profile.instructions} {IN_ENGLISH}".strip()
            profile = replace(profile, instructions=instructions)
        return shaped(profile, by_clause=config.agent.first_clause)
    if _is_presets(config, agent, "examples"):
        profile = replace(profile, examples=())
    if _is_presets(config, agent, "opening"):
        profile = replace(profile, opening="")
    instructions = f"{profile.instructions} {known.answer_in}".strip()
    return shaped(replace(profile, instructions=instructions), by_clause=config.agent.first_clause)


def _is_presets(config: Config, agent: str, field: str) -> bool:
    """True if this setting of an agent is a preset's, its own or that of the default agent."""
    origin = config.origins.get(f"agents.{agent}.{field}", "default")
    if origin == f"agents.{DEFAULT_AGENT}":
        origin = config.origins.get(f"{origin}.{field}", "default")
    return origin.startswith("preset ")


def localized(config: Config, agent: str, language: str) -> AgentProfile:
    """The agent with a prompt for calls in this language. Raises KeyError for an unknown one."""
    return _localized(config, agent, config.agents[agent], language)


def resumed_start(config: Config, state: "CallState") -> SessionStart:
    """Initial state for a call that another server began. An agent that is not in these settings is
    replaced by the default one, but for its instructions."""
    head, settings = state.head, state.session.settings
    agent, profile = config.profile(settings.agent)  # after a handoff not the one it began with
    profile = _localized(config, agent, profile, settings.language)
    model = head.model if settings.agent == head.agent else settings.agent
    return SessionStart(agent, profile, settings, model, frozenset(head.fixed))
