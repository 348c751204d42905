"""Session settings that a client may change, independent of any wire protocol."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

import languages
from latency_budget.account.budget import TARGET_MS

from .conversation import Item, ItemReference, Modality

AudioEncoding = Literal["pcm16", "pcmu", "pcma"]
"""pcm16: little-endian, 24 kHz; pcmu and pcma: G.711 at 8 kHz."""

WIRE_RATE_HZ: Final[dict[str, int]] = {"pcm16": 24_000, "pcmu": 8_000, "pcma": 8_000}

MAX_PACE_MS: Final = 5000
"""Longest pace: beyond it a caller has asked again."""

MIN_BUDGET_MS: Final = 50
MAX_BUDGET_MS: Final = 60_000
"""Bounds of the latency budget: no machine meets less, and no conversation bears more."""

Eagerness = Literal["low", "medium", "high", "auto"]


@dataclass(frozen=True, slots=True)
class ServerVad:
    """End of turn after a fixed silence, honoured literally."""

    threshold: float = 0.5
    """Speech probability, 0..1."""
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True


@dataclass(frozen=True, slots=True)
class SemanticVad:
    """End of turn by what was said as well as by silence. The default."""

    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad
"""Turn detection. None in its place means push-to-talk: the client commits and requests responses.
"""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Rule by which the oldest messages leave the model's context. The default: they are condensed
    to a summary while nobody waits, and dropped where the context is full nevertheless."""

    is_disabled: bool = False
    """Nothing leaves: a response for which the context has no room fails."""
    retention_ratio: float | None = None
    """Share of the room for messages, 0..1, that is still filled after some were dropped. None: the
    default rule."""
    post_instructions_tokens: int | None = None
    """Most tokens of messages, behind instructions and tools. None: as many as fit."""


AUTO_TRUNCATION: Final = Truncation()


@dataclass(frozen=True, slots=True)
class IgnoredField:
    """A field that the client set and that has no effect here."""

    param: str
    """Its path, as `error.param` says it: "session.tracing"."""
    reason: str
    """What holds instead, for the client's author."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The effective settings of a session. A client changes single fields."""

    transcribes_only: bool = False
    """Transcription only: no response is generated."""
    agent: str = "default"
    """Name of the `[agents.NAME]` section that answers."""
    instructions: str = ""
    output_modality: Modality = "audio"
    voice: str = "hibari"
    asked_voice: str = ""
    """Voice that was asked for, where another one speaks because of the language; else empty."""
    speed: float = 1.0
    input_encoding: AudioEncoding = "pcm16"
    output_encoding: AudioEncoding = "pcm16"
    line_rate_hz: int | None = None
    """Sample rate of a telephone line, where it differs from the encoding's own."""
    turn_detection: TurnDetection | None = field(default_factory=SemanticVad)
    transcription: dict[str, Any] | None = None
    """The client's `audio.input.transcription`, shown as set. Transcripts are sent always."""
    agent_language: str = languages.ENGLISH.code
    """Language of the agent's calls, where the client asks for no other; `languages.AUTO`: it is
    found by what the caller says."""
    max_output_tokens: int | None = None
    """None: as many as the reply takes ("inf")."""
    pace_ms: int = 0
    """Shortest time from the caller's last word to the first audio, in ms."""
    budget_ms: int = TARGET_MS
    """Latency budget from the caller's last word to the first audible answer, in ms."""
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = None
    """False: a response calls one tool at most. None: the client has not said."""
    truncation: Truncation = AUTO_TRUNCATION
    ignored: tuple[IgnoredField, ...] = ()
    """Fields without effect that the newest change set; the client is told of them once."""

    @property
    def speaks(self) -> bool:
        """True if responses are spoken, unless one asks for something else."""
        return not self.transcribes_only and self.output_modality == "audio"

    @property
    def output_rate_hz(self) -> int:
        """Sample rate of the output audio."""
        return self.line_rate_hz or WIRE_RATE_HZ[self.output_encoding]

    @property
    def language(self) -> str:
        """Language of the call: the one that the client asks for transcripts in, or the agent's.
        English, until it is found."""
        return languages.until_found(self._asked_language)

    @property
    def finds_language(self) -> bool:
        """True while the language is still to be found by what the caller says."""
        return self._asked_language == languages.AUTO

    @property
    def _asked_language(self) -> str:
        asked = self.transcription or {}
        tag = asked.get("language") or next(iter(asked.get("languages") or ()), "")
        return languages.code_of(tag) or self.agent_language

    def with_language(self, code: str) -> "SessionSettings":
        """The settings with the language that was found."""
        asked = dict(self.transcription or {})
        asked.pop("languages", None)
        return self.changed(transcription=asked | {"language": code})

    def rebased(self, base: "SessionSettings", onto: "SessionSettings") -> "SessionSettings":
        """The settings `onto`, with what these changed of `base`."""
        if base is onto:
            return self
        mine = {
            item.name: value
            for item in fields(self)
            if (value := getattr(self, item.name)) != getattr(base, item.name)
        }
        if "transcription" in mine:
            asked = self.transcription, base.transcription, onto.transcription
            mine["transcription"] = _rebased_fields(*asked)
        return replace(onto, **{**mine, "ignored": self.ignored})

    def changed(self, **changes: Any) -> "SessionSettings":
        """A copy with these fields changed."""
        return replace(self, **changes)


def _rebased_fields(
    mine: dict[str, Any] | None, base: dict[str, Any] | None, onto: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The fields `onto`, with what `mine` changed of `base`: an update of the prompt does not ask
    again for a language that was refused. `mine` None: there are none any more."""
    if mine is None:
        return None
    base, onto = base or {}, onto or {}
    kept = {name: value for name, value in onto.items() if name in mine or name not in base}
    changed = {
        name: value for name, value in mine.items() if name not in base or base[name] != value
    }
    return kept | changed


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """Options of one response. None: the session's setting."""

    instructions: str | None = None
    output_modality: Modality | None = None
    max_output_tokens: int | Literal["inf"] | None = None
    """"inf": as many as the reply takes, whatever the session's limit."""
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    voice: str | None = None
    output_encoding: AudioEncoding | None = None
    metadata: dict[str, str] | None = None
    out_of_band: bool = False
    """`conversation: "none"`: the reply does not join the conversation."""
    input: tuple[Item | ItemReference, ...] | None = None
    """Items to answer in place of the conversation."""
    ignored: tuple[IgnoredField, ...] = ()
    """Fields without effect that the client set."""

    def applied(self, settings: SessionSettings) -> SessionSettings:
        """The session's settings with this response's voice, encoding and limit of tokens."""
        if (self.voice, self.output_encoding, self.max_output_tokens) == (None, None, None):
            return settings
        limit = self.max_output_tokens or settings.max_output_tokens
        return settings.changed(
            voice=self.voice or settings.voice,
            output_encoding=self.output_encoding or settings.output_encoding,
            max_output_tokens=None if limit == "inf" else limit,
        )
