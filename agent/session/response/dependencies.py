"""Dependencies of a session, by concern: stages, options, outputs, shared state."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import languages
from agent.observability.agent_state import OnState
from agent.observability.counters import BargeIns, PreemptiveCounts
from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.server_events import Notice
from agent.session.context.condensing import CondensingCounts
from agent.session.ports.stage_ports import (
    NO_RECORDING,
    ChatMessage,
    ChatPort,
    RecordingPort,
    SpeechInputPort,
    ToolsPort,
    VoicePort,
)
from agent.tools.offered import NO_TOOLS
from agent.turn_taking.end_of_turn import NOT_IDLE, IdleRules
from latency_budget.account.actions import Action
from latency_budget.account.budget import Budget
from latency_budget.account.clock import Clock
from latency_budget.enforcement.policy import Policy
from tts.text_chunker import CutterConfig

from .handoff import SwitchAgent, no_agents

OpenChat = Callable[[str, Sequence[ChatMessage]], ChatPort]
"""Opens a conversation in the language model, with these instructions and examples. Reaches the
model on the first request."""

OpenVoice = Callable[[str, int, float], VoicePort]
"""Opens a voice by its name, at a sample rate in Hz and a speed (1: its own). Raises ClientError
for an unknown name."""


PrepareLanguage = Callable[[str, str], Awaitable[str]]
"""Loads what calls of a language need; takes its code and the voice that is asked for (empty where
nothing speaks), and returns the voice that speaks it. Raises ClientError for a language that calls
can't have here."""


IsPrepared = Callable[[str, str], bool]
"""True if `PrepareLanguage` would wait for nothing; takes the same."""


async def _keep_voice(language: str, voice: str) -> str:
    return voice


@dataclass(frozen=True, slots=True)
class SessionStages:
    """The models and tools that a session works with."""

    ears: SpeechInputPort
    open_chat: OpenChat
    open_voice: OpenVoice
    tools: ToolsPort = NO_TOOLS
    """Tools that run on the server."""
    speaking_voice: Callable[[str], str] = lambda name: name
    """Returns the name of the voice that speaks where a client names this one."""
    is_troubled: Callable[[], bool] = lambda: False
    """True while a model is being rebuilt, or seems to hang in its job."""
    prepare_language: PrepareLanguage = _keep_voice
    is_prepared: IsPrepared = lambda language, voice: True
    switch_agent: SwitchAgent = no_agents


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The operator's and the transport's choices for one session; the client can't change them."""

    lead_ms: int
    """Audio that is sent ahead of real time, in ms."""
    budget: Budget
    """Division of the time from the caller's last word to the answer among the stages. The
    session's settings replace its total."""
    sentences: Callable[[str], languages.Sentences]
    """Sentences that the service says in calls of a language, by its code."""
    preemptive: bool = True
    """Responses are generated before the end of the turn is decided."""
    previews: bool = True
    """The model prefills the caller's words while they are being spoken."""
    ducks: bool = False
    """The client turns a response down on `halfsec.duck`."""
    chunking: CutterConfig = field(default_factory=CutterConfig)
    """Rules by which responses are cut into pieces to speak."""
    early_openers: bool = False
    """Openers are also spoken before it is certain enough for an answer that the turn is over."""
    idle: IdleRules = NOT_IDLE
    """Times after which a silent caller is prompted and the call ends."""
    instructions_in: Callable[[str], str] | None = None
    """The agent's own instructions in calls of a language, by its code. None: they are the same in
    all."""
    expires_at_unix_s: int | None = None
    """Time at which the call is ended, in s since 1970; None: never."""


@dataclass(frozen=True, slots=True)
class SessionOutputs:
    """Receivers of what one session reports."""

    notify: Callable[[Notice], None]
    """Sends a notice to the client."""
    log: TurnRecorder
    """Records events, commands and marks."""
    recording: RecordingPort = NO_RECORDING
    """Records the audio of the call."""
    on_agent: Callable[[str], None] = lambda agent: None
    """Called with the name of the agent that took over."""
    on_state: OnState = lambda state, stage: None
    """Called with the agent's state and the stage that it waits for, when either changes."""
    on_background: Callable[[int], None] = lambda num_running: None
    """Called with the number of tools that run in the background, when it changes."""


@dataclass(frozen=True, slots=True)
class SharedState:
    """The clock, and what all calls of the service share."""

    clock: Clock
    policy: Policy = field(default_factory=lambda: Policy({Action.OPENER}))
    """Policy of the actions against late turns."""
    barge_ins: BargeIns = field(default_factory=BargeIns)
    """Counts of overlaps of caller and agent."""
    preemptive_counts: PreemptiveCounts = field(default_factory=PreemptiveCounts)
    """Counts of preemptive responses."""
    condensing_counts: CondensingCounts = field(default_factory=CondensingCounts)
    """Counts of attempts to condense the oldest turns."""
