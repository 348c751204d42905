"""Handoff of a call from one agent to another.

The model calls a tool of the handoff, like `transfer_to_billing`. The session then switches: what
the other agent has of its own holds from the next response on, the history stays. The tool is not
run again, and there is nothing that could be undone: a caller who interrupts the words before the
tool stops the handoff, one who interrupts the words behind it speaks to the other agent.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from agent.config.schema import AgentProfile
from agent.errors import StageError
from agent.session.api.settings import SessionSettings
from agent.session.ports.stage_ports import ToolsPort

MAX_HANDOFFS: Final = 3
"""Most handoffs after the caller's last words. Fewer stop chains that make sense (front desk,
billing, refunds); more are agents that hand a caller round in a circle."""

TOO_MANY: Final = (
    "Error: this caller has been handed on often enough. Don't hand them on; answer them yourself."
)
NOT_THIS_ONE: Final = "Error: multiple handoffs at once; this one is ignored."


@dataclass(frozen=True, slots=True)
class AgentSwitch:
    """What another agent brings into a call. The language of the call stays."""

    agent: str
    profile: AgentProfile
    """With the prompt in the call's language."""
    voice: str
    """Loaded, and in the call's language."""
    asked_voice: str
    """The agent's own voice, where another one speaks the call's language; else empty."""
    pace_ms: int
    budget_ms: int
    tools: ToolsPort

    def applied(self, settings: SessionSettings, old: AgentProfile) -> SessionSettings:
        """The session's settings with this agent in place of the one with the profile `old`. Tools
        that the client has set itself stay; a choice that names a tool which is gone is "auto"."""
        is_clients = settings.tools != old.tools
        choice = settings.tool_choice if is_clients else "auto"
        if isinstance(choice, Mapping):
            name = choice["name"]
            is_there = any(each["name"] == name for each in settings.tools) or self.tools.has(name)
            choice = choice if is_there else "auto"
        return settings.changed(
            agent=self.agent,
            instructions=self.profile.instructions,
            voice=self.voice,
            asked_voice=self.asked_voice,
            pace_ms=self.pace_ms,
            budget_ms=self.budget_ms,
            tools=settings.tools if is_clients else self.profile.tools,
            tool_choice=choice,
        )


SwitchAgent = Callable[[str, SessionSettings, AgentProfile], Awaitable[AgentSwitch]]
"""Prepares an agent for a session with these settings, where the agent with this profile answers so
far: its voice and its tools. Raises StageError and ClientError where it can't take the call."""


async def no_agents(agent: str, settings: SessionSettings, old: AgentProfile) -> AgentSwitch:
    """A `SwitchAgent` of sessions with one agent. Raises StageError."""
    raise StageError("llm", f"there is no agent {agent!r} here")


def transferred(agent: str) -> str:
    """Result of the tool for the models, as in the OpenAI Agents SDK."""
    return f'{{"assistant": "{agent}"}}'
