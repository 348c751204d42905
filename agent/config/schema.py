"""The settings: what there is to set, with its bounds and its default.

The defaults are those of the preset `embedded`, all but its prompt. `layers.py` lays preset,
file, environment and flags over them; `sources.py` does the reading.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from agent.session.api.settings import MAX_BUDGET_MS, MAX_PACE_MS, MIN_BUDGET_MS
from latency_budget.account.budget import TARGET_MS

from .access import AccessSettings
from .presets import DEFAULT_PRESET
from .telephony import TelephonySettings
from .tools import McpSettings, ToolTimeout
from .values import Between, Matching

DEFAULT_AGENT: Final = "default"

GPU_DTYPES: Final = ("bfloat16", "fp8")
"""Of `llm_engine.dtype`: those in which only a GPU calculates."""

FOR_GPUS: Final = ("head_dtype", "kv_dtype", "calibration", "gpus")
"""Of `[llm_engine]`: what has no effect elsewhere."""

PaceMs = Annotated[int, Between(0, MAX_PACE_MS)]
BudgetMs = Annotated[int, Between(MIN_BUDGET_MS, MAX_BUDGET_MS)]
Threads = Annotated[int, Between(1, 256)]


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """`[agent]`: the server and its calls."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 opens it to the network, for those with a key."""
    port: Annotated[int, Between(0, 65535)] = 8080
    """0: any free one."""
    preset: str = DEFAULT_PRESET
    """Models, prompt and budget that belong together, below everything that is set here."""
    lead_ms: Annotated[int, Between(20, 5000)] = 400
    """How far ahead of real time audio is sent. Less: a slow network stutters. More: a client that
    does not empty its buffer speaks on after a barge-in."""
    max_sessions: Annotated[int, Between(1, 10_000)] = 4
    """Calls at once; one more is refused."""
    session_limit_s: Annotated[int, Between(1, 86_400)] = 3600
    """Longest call. OpenAI's own sessions end after an hour as well."""
    resume_s: Annotated[int, Between(0, 3600)] = 60
    """How long a call waits for a client whose connection broke; 0: it ends with the connection.
    Only clients that offer `halfsec.v1` can come back."""
    drain_s: Annotated[int, Between(0, 3600)] = 30
    """How long calls may go on after SIGTERM."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins besides the server's own whose pages may connect; "*" admits all."""
    allowed_hosts: tuple[str, ...] = ()
    """Names under which the server is reached, besides localhost and `host`: behind a reverse
    proxy, or by name in a network. "*": all, which lets in any web page that a caller visits."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What goes to stderr. "info": a line for each call and each refusal, no word of theirs."""
    guess: bool = True
    """Prepare the reply in the caller's pause, before it is known that the caller is done. false:
    less work for the processor, and every answer comes later."""
    preview: bool = True
    """Let the language model read the caller's words while they are being said."""
    first_clause: bool = True
    """Begin a reply with a short clause, which is spoken while the rest is still thought of. false:
    whole sentences, no word of it in the prompt, and every answer comes later."""
    pace_ms: PaceMs = 0
    """An answer is not heard before so long after the caller's last word. 0: as soon as it can be;
    700: for callers to whom that seems rude. Greetings, and replies that a client asks for, come
    without delay."""
    openers: tuple[str, ...] = ()
    """Words, a list like ["One moment,", "Let me see,"], of which one is said in front of a reply
    that would come after `latency_budget.total_ms`, as a last resort. They are synthesized when the
    server starts. Empty: a late reply just comes late."""
    idle_prompt_ms: Annotated[int, Between(0, 3_600_000)] = 0
    """Silence after the agent's last sound until the caller is asked for a word, twice at most;
    0: never. A client that chose `server_vad` says so itself, by its `idle_timeout_ms`."""
    idle_prompt: str = "Are you still there?"
    """What is said then."""
    idle_hangup_ms: Annotated[int, Between(0, 3_600_000)] = 0
    """Silence until the call is ended, once nobody is asked any more; 0: never."""
    tool_timeout_s: ToolTimeout = 10
    """The longest that a tool of the server may take; then the model is told that it failed."""
    tool_wait: str = "One moment."
    """Said, once in a reply, where a tool of the server takes so long that the caller would hear
    nothing. Empty: nothing is said."""
    tool_result_chars: Annotated[int, Between(100, 1_000_000)] = 4000
    """What is told to the model of a tool's result; the rest is cut off, and the model told so."""
    log_tools: bool = False
    """Log what tools of the server were called with, what they gave, and how those failed that did;
    and let MCP servers that are commands write to stderr. All of that may be words of callers."""
    trace_dir: str | None = None
    """Directory that gets a trace of every call, its words included. Not set: traces stay in
    memory, a bounded number."""
    record_dir: str | None = None
    """Directory that gets a recording of every call: a stereo WAV, caller left and agent right.
    Calls by telephone only where `telephony.record` says so. Callers have to know, and in many
    countries to agree. Not set: nothing is recorded."""
    record_days: Annotated[int, Between(1, 36_500)] = 30
    """Older recordings are deleted."""
    record_mb: Annotated[int, Between(1, 4000)] = 500
    """The largest recording of a call, in millions of bytes; what is said after that is not in it.
    An hour takes 346, of a telephone's sound 115."""


@dataclass(frozen=True, slots=True)
class AsrSettings:
    """`[asr]`: speech to text."""

    model: str = "whisper-tiny.en"
    """A name in models.toml, a directory with a CTranslate2 Whisper, or a Hugging Face id."""
    threads: Threads = 2
    """Processor threads of the recognizer."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the recognizer runs: cuda is an NVIDIA GPU."""
    compute_type: Literal[
        "int8", "int8_float32", "int8_bfloat16", "int8_float16", "float32", "bfloat16", "float16"
    ] = "int8"
    """In what the recognizer calculates. float16 and int8_float16 are for a GPU."""
    language: Annotated[str, Matching("[a-z]{2,3}", 'a language code like "en"')] = "en"
    """What callers speak."""
    pause_ms: Annotated[int, Between(32, 2000)] = 80
    """Silence after which the speculative final pass starts. Shorter fires inside words, longer is
    added to every answer."""
    early_ms: Annotated[int, Between(0, 2000)] = 32
    """Silence after which the words are recognized in case it becomes a pause; where it does, they
    are there sooner. 0: only what is due as a partial then."""
    max_file_s: Annotated[int, Between(1, 86_400)] = 7200
    """Longest recording that is transcribed over HTTP. A small file can decode to days of it."""


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """`[llm_engine]`: the language model."""

    model: str = "smollm2-135m-instruct"
    """A name in models.toml, a GGUF file, a Hugging Face directory, or a Hugging Face id."""
    dtype: Literal["int8", "float32", "bfloat16", "fp8"] = "int8"
    """In what the linear layers calculate. float32 is exact, and three times slower; bfloat16 and
    fp8 are for an NVIDIA GPU."""
    threads: Threads = 2
    """Processor threads of the language model."""
    temperature: Annotated[float, Between(0, 2)] = 0.0
    """0: always the likeliest token."""
    top_p: Annotated[float, Between(0.01, 1)] = 1.0
    """Chooses among the likeliest tokens that have this probability together; 1: among all."""
    repetition_penalty: Annotated[float, Between(1, 2)] = 1.0
    """Above 1, words that a reply has used become less likely in it. Small models loop without."""
    max_tokens: Annotated[int, Between(1, 8192)] = 256
    """Longest reply. A spoken sentence has about 15 to 25 tokens."""
    context: Annotated[int, Between(256, 1_048_576)] = 2048
    """Tokens of conversation that the model may look back on."""
    cache_mb: Annotated[int, Between(16, 1_048_576)] = 1024
    """Memory for what the model remembers of all calls. When it is full, those that have been idle
    longest are computed anew at their next turn."""
    max_batch: Annotated[int, Between(1, 64)] = 4
    """Replies, of as many calls, that are computed together: four in less than two thirds of the
    time. More than 1 keeps a second copy of the weights in memory (200 MB for the default model),
    which a large model may have no room for. Never more than `agent.max_sessions`."""
    head_dtype: Literal["", "bfloat16", "fp8"] = ""
    """On a GPU: of the matrix that gives the logits. Empty: as `dtype`."""
    calibration: str = ""
    """With fp8: a file of text like what will be said; weights are rounded so that it changes
    least. Takes minutes at every start. Empty: each weight is rounded to the nearest."""
    kv_dtype: Literal["bfloat16", "fp8"] = "bfloat16"
    """On a GPU: of keys and values. fp8 takes half the memory, and rounds them."""
    gpus: Annotated[int, Between(1, 64)] = 1
    """NVIDIA GPUs among which the model is divided. Its heads must be divisible by as many."""
    small_model: str = ""
    """A smaller model, named as `model` is, which takes a call's replies over while those of the
    model come too late. It takes memory of its own. Empty: none."""
    draft_model: str = ""
    """A smaller model with the same vocabulary, which guesses ahead; named as `model` is. Replies
    are the same, and come sooner where it guesses well. Empty: none."""
    draft_heads: str = ""
    """A directory of draft heads made for `model` by `halfsec train-heads`, to the same end. Every
    dtype but int8 can use them. Empty: none."""


@dataclass(frozen=True, slots=True)
class TtsSettings:
    """`[tts]`: text to speech."""

    voice: str = "hibari"
    """"hibari", a Piper voice of models.toml, or the path of a Piper voice's .onnx file."""
    threads: Threads = 1
    """Beside a working language model a second thread slows both down on two cores."""


@dataclass(frozen=True, slots=True)
class LatencySettings:
    """`[latency_budget]`."""

    total_ms: BudgetMs = TARGET_MS
    """From the caller's last word to the first audible answer."""
    enforce: bool = True
    """Act where answers are about to be late: shorter first clauses, fewer partial transcripts, and
    so on. false: only watch."""
    admission: bool = True
    """Refuse a call with which those in progress would be answered too late, as far as the latest
    turns and the processor tell. false: only `agent.max_sessions` counts."""
    rehearse: Annotated[
        str,
        Matching(
            r"|asr\+[0-9]{1,5}|(llm|tts)x[1-9][0-9]?",
            '"asr+300", "llmx3" or "ttsx3", with any number',
        ),
    ] = ""
    """Make one stage slower on purpose, to see what is done about it. Empty: none."""
    store: bool = True
    """Keep the account of every turn in HALFSEC_HOME/turns.sqlite: times, no audio."""
    store_texts: bool = False
    """Keep the words of caller and agent there as well, and tell them to `otlp_endpoint`."""
    store_days: Annotated[int, Between(1, 36_500)] = 90
    """Older turns are forgotten."""
    store_turns: Annotated[int, Between(1, 10_000_000)] = 200_000
    """The newest that are kept, at some 1.3 kB each."""
    otlp_endpoint: Annotated[
        str, Matching(r"(https?://[^\s/?#@]+(/[^\s?#@]*)?)?", "empty, or like http://HOST:4318")
    ] = ""
    """An OpenTelemetry collector that gets a trace of every turn, as http://localhost:4318; needs
    the extra `otel`. Keys go into OTEL_EXPORTER_OTLP_HEADERS. Words only where `store_texts` is
    on. Empty: none."""


@dataclass(frozen=True, slots=True)
class Example:
    """One exchange that shows the model how to speak."""

    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """`[agents.NAME]`: who answers. What is left out is taken from `[agents.default]`."""

    instructions: str = "You are a friendly voice assistant. Answer in one or two short sentences."
    """The prompt: who the agent is and how it speaks."""
    opening: str = ""
    """Added to the instructions where `agent.first_clause` is on: how an answer is to begin. A
    client that sets instructions of its own replaces both."""
    greeting: str = ""
    """Spoken when the call begins; empty: the caller speaks first."""
    voice: str | None = None
    """Not set: as `[tts]` says."""
    language: Annotated[str, Matching("[a-z]{2,3}", 'a language code like "en"')] | None = None
    """Not set: as `[asr]` says."""
    pace_ms: PaceMs | None = None
    """Not set: as `[agent]` says."""
    budget_ms: BudgetMs | None = None
    """What may lie between the caller's last word and this agent's answer. Not set: as
    `latency_budget.total_ms` says."""
    preset: str | None = None
    """The preset whose prompt this agent starts from. The models are the server's."""
    tools: tuple[dict[str, Any], ...] = ()
    """Functions that the client runs, as OpenAI's `tools` describes them."""
    server_tools: tuple[str, ...] = ()
    """Functions that the server runs, a list like ["weather.py", "package.module", "mcp:NAME"]:
    those in Python that are marked with `@tool` of `agent.tools`, and those of `[mcp.NAME]`. In
    calls by telephone also "phone:hang_up", "phone:transfer" and "phone:press_keys"."""
    examples: tuple[Example, ...] = ()
    """Pinned before the conversation."""


def _default_agents() -> Mapping[str, AgentProfile]:
    return {DEFAULT_AGENT: AgentProfile()}


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One setting as it came out, for printing."""

    key: str
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. Immutable; shared by every thread."""

    agent: ServiceSettings = field(default_factory=ServiceSettings)
    asr: AsrSettings = field(default_factory=AsrSettings)
    llm_engine: LlmSettings = field(default_factory=LlmSettings)
    tts: TtsSettings = field(default_factory=TtsSettings)
    latency_budget: LatencySettings = field(default_factory=LatencySettings)
    telephony: TelephonySettings = field(default_factory=TelephonySettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    agents: Mapping[str, AgentProfile] = field(default_factory=_default_agents)
    """By name; `default` is always there."""
    mcp: Mapping[str, McpSettings] = field(default_factory=dict)
    """Servers of tools, by name."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Of each key that is not at its default: "agent.port" -> "environment variable PORT"."""

    def profile(self, name: str | None) -> tuple[str, AgentProfile]:
        """The agent called `name` and its name; an unknown one is served by the default."""
        if name is None or name not in self.agents:
            name = DEFAULT_AGENT
        return name, self.agents[name]

    @property
    def tool_waits(self) -> tuple[str, ...]:
        """The words that cover waiting for tools of the server, where an agent has any."""
        has_tools = any(profile.server_tools for profile in self.agents.values())
        return (self.agent.tool_wait,) if has_tools and self.agent.tool_wait.strip() else ()

    def pace_ms(self, profile: AgentProfile) -> int:
        """Of this agent's answers."""
        return self.agent.pace_ms if profile.pace_ms is None else profile.pace_ms

    def budget_ms(self, profile: AgentProfile) -> int:
        """What this agent's answers are held to."""
        total_ms = self.latency_budget.total_ms
        return total_ms if profile.budget_ms is None else profile.budget_ms

    def effective(self) -> Iterator[EffectiveSetting]:
        """Every setting with its value and origin, in the order of the sections."""
        for section in SECTIONS:
            for key, value in asdict(getattr(self, section)).items():
                yield self._effective(f"{section}.{key}", value)
        for group, tables in (("agents", self.agents), ("mcp", self.mcp)):
            for name, table in tables.items():
                for key, value in asdict(table).items():
                    yield self._effective(f"{group}.{name}.{key}", value)

    def _effective(self, key: str, value: object) -> EffectiveSetting:
        return EffectiveSetting(key, value, self.origins.get(key, "default"))

    def fingerprint(self) -> str:
        """16 hex digits, equal exactly where every setting is equal. Heads each trace."""
        values = {setting.key: setting.value for setting in self.effective()}
        text = json.dumps(values, sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


SECTIONS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "agent": ServiceSettings,
        "asr": AsrSettings,
        "llm_engine": LlmSettings,
        "tts": TtsSettings,
        "latency_budget": LatencySettings,
        "telephony": TelephonySettings,
        "access": AccessSettings,
    }
)
