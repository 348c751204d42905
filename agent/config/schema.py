"""Schema of the settings: sections and fields, with bounds and defaults.

The defaults are those of the preset `embedded`, except its prompt and context. `layers.py` merges
preset, file, environment and flags over them; `sources.py` reads file and environment. The
docstrings of the fields are the operator's documentation (`halfsec settings`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import languages
from agent.session.api.settings import MAX_BUDGET_MS, MAX_PACE_MS, MIN_BUDGET_MS
from engine_plugins.reference import is_plugin
from latency_budget.account.budget import TARGET_MS
from latency_budget.storage.postgres_url import PostgresUrl

from .access import AccessSettings
from .presets import DEFAULT_PRESET
from .remote_models import RemoteModel, RemoteSection, is_remote, parse_remote, shown_model
from .state_address import shown_state_store
from .telephony import TelephonySettings
from .tools import BackgroundTimeout, McpSettings, ToolTimeout
from .values import Between, Matching
from .webhooks import WebhookSettings, shown_webhook
from .webrtc import WebRtcSettings

DEFAULT_AGENT: Final = "default"

CHOSEN: Final = "chosen for this machine: "
"""Origin of settings that `auto_preset` made; the reason follows."""

GPU_DTYPES: Final = ("bfloat16", "fp8")
"""Values of `llm_engine.dtype` that need a GPU."""

DTYPES_OF_DEVICE: Final = {"cpu": ("int8", "int4", "float32"), "cuda": (*GPU_DTYPES, "int4")}
"""Values of `llm_engine.dtype` that `llm_engine.device` computes in."""

ASR_TYPES_OF_CPU: Final = ("int8", "int8_float32", "float32")
"""Values of `asr.compute_type` that a processor computes in (as CTranslate2 says)."""

FOR_GPUS: Final = ("head_dtype", "kv_dtype", "calibration", "gpus", "megakernel")
"""Settings of `[llm_engine]` without effect on a processor; `calibration` has one with int4."""

PaceMs = Annotated[int, Between(0, MAX_PACE_MS)]
BudgetMs = Annotated[int, Between(MIN_BUDGET_MS, MAX_BUDGET_MS)]
Threads = Annotated[int, Between(1, 256)]
KeyVariable = Annotated[
    str, Matching("([A-Za-z_][A-Za-z0-9_]{0,99})?", "the name of an environment variable")
]

WebOrigin = Annotated[
    str,
    Matching(
        r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@*]+/?",
        'web origins like https://voice.example.com, "null", or "*"',
    ),
]

Condensing = Literal["summary", "quotes", "off"]
"""What becomes of a call's oldest turns: see `llm_engine.condense`."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """`[agent]`: the server and its calls."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 opens it to the network, for those with a key."""
    port: Annotated[int, Between(0, 65535)] = 8080
    """Port to listen on; 0: any free one."""
    preset: str = DEFAULT_PRESET
    """Set of models, prompt and budget that belong together. Settings of the file override it.
    Without one, or with "auto": the largest whose model keeps up on this machine."""
    language: str = ""
    """Language of the calls, a code like "de"; agents and clients may choose another. de, en, es
    and fr are complete; in other languages there are recognition and a voice only. Others than
    English need the extra `languages`. "auto": a call begins in English and goes on in the complete
    language that the caller speaks. Empty: that of `[asr]`."""
    lead_ms: Annotated[int, Between(20, 5000)] = 400
    """How far ahead of real time audio is sent. Less: audio stutters on a slow network. More: a
    client that does not empty its buffer plays on after a barge-in."""
    max_sessions: Annotated[int, Between(1, 10_000)] = 4
    """Most calls at once; one more is refused."""
    session_limit_s: Annotated[int, Between(1, 86_400)] = 3600
    """Longest call, in seconds. OpenAI's own sessions end after an hour as well."""
    resume_s: Annotated[int, Between(0, 3600)] = 60
    """Seconds for which a call is kept for a client whose connection broke; 0: it ends with the
    connection. Only clients that offer `halfsec.v1` can resume."""
    state_store: str = "memory"
    """Where the state of calls is kept, with one-time tokens, answers to webhooks, and revoked
    keys. "memory": in this process, and ends with it. A Redis that several servers share, like
    "redis://HOST:6379/0?prefix=halfsec:" (rediss:// with TLS): a call outlives its server; needs
    the extra `redis`. Each fleet on one Redis needs a prefix of its own."""
    drain_s: Annotated[int, Between(0, 3600)] = 30
    """Seconds for which calls may go on after SIGTERM."""
    allowed_origins: tuple[WebOrigin, ...] = ()
    """Web origins besides the server's own whose pages may connect, a list like
    ["https://voice.example.com"], as browsers send them: without a path. "null": pages without an
    origin, such as files. "*" admits all."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names of the server besides localhost and `host`: behind a reverse proxy, or by name in
    a network. "*": all, which admits any web page that a caller visits."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of the log on stderr. "info": a line for each call and each refusal, without words of
    the caller."""
    guess: bool = True
    """Preemptive generation: prepare the reply in the caller's pause, before the end of the turn is
    known. false: less work for the processor, and every answer comes later."""
    preview: bool = True
    """Prefill the language model with the caller's words while they are being spoken."""
    first_clause: bool = True
    """Begin a reply with a short clause, which is spoken while the rest is still being generated.
    false: whole sentences, nothing about it in the prompt, and every answer comes later."""
    pace_ms: PaceMs = 0
    """Shortest time from the caller's last word to an answer. 0: none; 700: for callers to whom
    fast answers seem rude. Greetings, and replies that a client asks for, are not delayed."""
    openers: tuple[str, ...] = ()
    """Prepared phrases, a list like ["One moment,", "Let me see,"], of which one is played in front
    of a reply that would come after `latency_budget.total_ms`, as a last resort. They are
    synthesized when the server starts. Empty: a late reply just comes late."""
    early_openers: bool = False
    """Play an opener in the caller's pause already, where it is likely and not yet certain that the
    caller is done; the answer follows when it is, and a caller who goes on has only spoken over the
    opener. Needs `guess`, and `openers` that are right in front of any answer: "Well,"."""
    idle_prompt_ms: Annotated[int, Between(0, 3_600_000)] = 0
    """Silence after the agent's last sound until `idle_prompt` is spoken, twice at most; 0: never.
    A client with `server_vad` sets it by its `idle_timeout_ms`."""
    idle_prompt: str = languages.ENGLISH.sentences.idle_prompt
    """Spoken to a silent caller. In calls of another language than the server's, and where this
    is not set, a sentence of that language takes its place; so for `tool_wait` and `openers`."""
    idle_hangup_ms: Annotated[int, Between(0, 3_600_000)] = 0
    """Silence after the last prompt until the call is ended; 0: never."""
    tool_timeout_s: ToolTimeout = 10
    """Time limit of a server tool; then it counts as failed for the model."""
    background_tool_timeout_s: BackgroundTimeout = 120
    """Time limit of a server tool that goes on in the background of a call."""
    tool_wait: str = languages.ENGLISH.sentences.tool_wait
    """Spoken, once in a reply, where a server tool takes so long that the caller would hear
    silence, and in front of a reply that waits for a model that hangs or is being loaded anew.
    Empty: nothing is spoken."""
    tool_result_chars: Annotated[int, Between(100, 1_000_000)] = 4000
    """Longest result of a tool for the model; the rest is cut off, and a note says so."""
    log_tools: bool = False
    """Log the arguments, results and errors of server tools, and let MCP servers that are commands
    write to stderr. All of that may contain words of callers."""
    trace_dir: str | None = None
    """Directory for a trace of every call, its words included; files are readable by their owner
    alone. Not set: traces stay in memory, a bounded number."""
    record_dir: str | None = None
    """Directory for a recording of every call: a stereo WAV, caller left and agent right. Telephone
    calls are recorded only as `telephony.record` says. Callers must be informed, and in many
    countries must consent. Not set: nothing is recorded."""
    record_days: Annotated[int, Between(1, 36_500)] = 30
    """Days after which recordings are deleted."""
    record_mb: Annotated[int, Between(1, 4000)] = 500
    """Largest recording of a call, in millions of bytes; it ends there. An hour takes 346, of
    telephone audio 115."""


@dataclass(frozen=True, slots=True)
class AsrSettings:
    """`[asr]`: speech to text."""

    model: str = "whisper-tiny.en"
    """A name in models.toml, a directory with a CTranslate2 Whisper, or a Hugging Face id. Or a
    recognizer of another server with OpenAI's API, like
    "openai:http://gpu-box:8000/v1#whisper-large-v3", or of another package, like
    "plugin:argument"."""
    multilingual_model: str = "whisper-base"
    """Recognizer of this process for calls in languages that `model` does not know, named like it.
    It is loaded with the first such call, or at the start where an agent speaks such a language,
    and shared by calls. Empty: none."""
    threads: Threads = 2
    """Processor threads of the recognizer."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the recognizer: cuda is an NVIDIA GPU."""
    compute_type: Literal[
        "int8", "int8_float32", "int8_bfloat16", "int8_float16", "float32", "bfloat16", "float16"
    ] = "int8"
    """Number format of the recognizer. Those of 16 bits (float16, bfloat16) are for a GPU."""
    language: Annotated[str, Matching("[a-z]{2,3}", 'a language code like "en"')] = "en"
    """Language that the recognizer is loaded with, and that of the calls unless `agent.language` or
    an agent says otherwise."""
    pause_ms: Annotated[int, Between(32, 2000)] = 80
    """Silence after which the speculative final pass starts. Shorter triggers within words, longer
    is added to every answer."""
    early_ms: Annotated[int, Between(0, 2000)] = 32
    """Silence after which a pass starts in case it becomes a pause; where it does, the words are
    ready sooner. 0: only the partial passes that are due."""
    max_file_s: Annotated[int, Between(1, 86_400)] = 7200
    """Longest recording that is transcribed over HTTP, in seconds. A small file can decode to days
    of audio."""
    fallback_model: str = ""
    """With a recognizer of another server: a recognizer of this process, named like `model`, which
    answers where the server does not. Empty: none; callers then hear an apology."""
    remote_transport: Literal["auto", "realtime", "upload"] = "auto"
    """With a recognizer of another server: how it gets the audio. "realtime": by a Realtime
    transcription session, while the caller speaks. "upload": a recording at each pause, so there
    are no words before the first. "auto": realtime where the server takes such sessions."""
    remote_key_env: KeyVariable = ""
    """With a recognizer of another server: name of the variable of halfsec's environment that has
    the API key. Empty: no key is sent."""
    remote_headers: dict[str, str] = field(default_factory=dict)
    """With a recognizer of another server: headers of every request, each with the name of the
    variable of halfsec's environment that has the value."""
    remote_timeout_s: Annotated[float, Between(0.5, 60)] = 6.0
    """With a recognizer of another server: longest wait for the words of a pause. Then
    `fallback_model` answers, or the caller hears an apology."""

    @property
    def remote(self) -> RemoteModel | None:
        """The recognizer on another server; None where this process recognizes."""
        return parse_remote(self.model, "asr") if is_remote(self.model) else None

    @property
    def local_model(self) -> str:
        """The recognizer of this process; empty: none."""
        return self.fallback_model if is_remote(self.model) else self.model


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """`[llm_engine]`: the language model."""

    model: str = "smollm2-135m-instruct"
    """A name in models.toml, a GGUF file, a Hugging Face directory, or a Hugging Face id. Or a
    model of another server with OpenAI's API, like "openai:http://gpu-box:8000/v1#qwen3-8b", or of
    another package, like "plugin:argument"."""
    dtype: Literal["int8", "int4", "float32", "bfloat16", "fp8"] = "int8"
    """Number format of the linear layers. int4 keeps what GPTQ, AWQ and GGUF files (Q4_0, Q4_1,
    Q4_K) have in 4 bits as it is, and rounds half of the weights of others, which makes tokens
    about a tenth quicker. float32 is exact, and three times slower; bfloat16 and fp8 are for an
    NVIDIA GPU."""
    device: Literal["", "cpu", "cuda"] = ""
    """Device of the language model: cuda is an NVIDIA GPU. Empty: as `dtype` says, with int4 the
    processor."""
    threads: Threads = 2
    """Processor threads of the language model."""
    temperature: Annotated[float, Between(0, 2)] = 0.0
    """Sampling temperature; 0: always the likeliest token."""
    top_p: Annotated[float, Between(0.01, 1)] = 1.0
    """Nucleus sampling: samples among the likeliest tokens with this total probability; 1: all."""
    repetition_penalty: Annotated[float, Between(1, 2)] = 1.0
    """Above 1, tokens that a reply has used become less likely in it. Small models loop without."""
    max_tokens: Annotated[int, Between(1, 8192)] = 256
    """Longest reply, in tokens. A spoken sentence has about 15 to 25."""
    parallel_tool_calls: bool = True
    """Lets a reply call several tools at once. Small models then call whatever there is."""
    max_tool_rounds: Annotated[int, Between(1, 5)] = 5
    """Most tool rounds after the caller's last words: calls, then their results. After the last
    the model has to answer in words. Small models seldom do so by themselves."""
    examples_with_tools: bool = True
    """Shows the model an agent's examples also while tools are offered. Small models then talk like
    the examples instead of calling."""
    reply_tool: bool = False
    """While tools are offered, offers the reply in words as one more tool, and has the model choose
    one. Small models then call when they should, and tell what a tool answered."""
    thinking: bool = False
    """Lets a model think before it answers, where its chat template has a switch for that (Qwen3).
    Thoughts are never spoken, count for `max_tokens`, and the caller waits for them."""
    grounded_calls: bool = False
    """Holds the arguments of tool calls to what the caller or an earlier result said: numbers,
    times, dates and names. Where an argument was not said, the model asks for it. Small models make
    arguments up."""
    context: Annotated[int, Between(256, 1_048_576)] = 4096
    """Context length of the model, in tokens; at most its own. A call's takes up to 0.2 GB of
    memory with a model for a processor, within `cache_mb`."""
    condense: Condensing = "quotes"
    """What becomes of a call's oldest turns before the context is full, while nobody waits for the
    model. "quotes": the caller's own sentences with names, numbers and wishes are kept. "summary":
    the model writes a summary, which models below half a billion parameters can't. "off": nothing;
    the oldest turns are dropped when the context is full."""
    cache_mb: Annotated[int, Between(16, 1_048_576)] = 1024
    """Memory of the KV cache of all calls. When it is full, the calls that have been idle longest
    are recomputed at their next turn."""
    max_batch: Annotated[int, Between(1, 64)] = 4
    """Replies of different calls that are computed in one batch: four in less than two thirds of
    the time. Never more than `agent.max_sessions`."""
    head_dtype: Literal["", "bfloat16", "fp8"] = ""
    """On a GPU: number format of the output layer. Empty: as `dtype`; with int4 in 4 bits where the
    model's file has it so, else as the other matrices that are not."""
    calibration: str = ""
    """With fp8 or int4: a file of text like that of the calls; weights are rounded so that its
    outputs change least. With fp8 it takes minutes at every start, with int4 at the first, on a
    GPU at every one. Empty: each weight is rounded to the nearest, with int4 on a GPU a text of
    halfsec's own is taken."""
    kv_dtype: Literal["bfloat16", "fp8"] = "bfloat16"
    """On a GPU: number format of the KV cache. fp8 takes half the memory, and rounds."""
    megakernel: bool = False
    """On one GPU of compute capability 9.0 or newer: run all layers of a decode step in one kernel
    (experimental). One call is quicker, eight at once are slower."""
    gpus: Annotated[int, Between(1, 64)] = 1
    """Number of NVIDIA GPUs that share the model (tensor parallel). It must divide the number of
    heads."""
    small_model: str = ""
    """A smaller model, named like `model`, which generates a call's replies while those of `model`
    come too late. With a model of another server or package it also answers where that one fails,
    and says how likely the caller's message is over. It takes memory of its own. Empty: none."""
    draft_model: str = ""
    """A smaller model with the same vocabulary for speculative decoding, named like `model`.
    Replies are the same, and come sooner where its drafts are accepted. Empty: none."""
    draft_heads: str = ""
    """A directory of draft heads made for `model` by `halfsec train-heads`, for the same purpose.
    Every dtype except int8 and int4 can use them, on a GPU int4 too. Empty: none."""
    remote_key_env: KeyVariable = ""
    """With a model of another server: name of the variable of halfsec's environment that has the
    API key, like OPENAI_API_KEY. Empty: no key is sent."""
    remote_headers: dict[str, str] = field(default_factory=dict)
    """With a model of another server: headers of every request, each with the name of the variable
    of halfsec's environment that has the value, like { X-Tenant = "MY_TENANT" }."""
    remote_extra_body: dict[str, Any] = field(default_factory=dict)
    """With a model of another server: fields added to every request, a table like
    { chat_template_kwargs = { enable_thinking = false } }."""
    remote_timeout_s: Annotated[float, Between(0.5, 60)] = 8.0
    """With a model of another server or package: longest wait for the first token, and between two.
    Then `small_model` answers, or the caller hears an apology. Longer than 20 s: the turn is over
    before."""

    @property
    def on_gpu(self) -> bool:
        """True if the language model of this process runs on an NVIDIA GPU."""
        return self.has_engine and (self.dtype in GPU_DTYPES or self.device == "cuda")

    @property
    def remote(self) -> RemoteModel | None:
        """The model on another server; None for any other."""
        return parse_remote(self.model) if is_remote(self.model) else None

    @property
    def is_own(self) -> bool:
        """True if the engine of this process computes `model`: it is neither on another server nor
        of a plug-in."""
        return not (is_remote(self.model) or is_plugin(self.model))

    @property
    def has_engine(self) -> bool:
        """True if the engine of this process computes a language model."""
        return self.is_own or bool(self.small_model)


@dataclass(frozen=True, slots=True)
class TtsSettings:
    """`[tts]`: text to speech."""

    voice: str = "hibari"
    """"hibari", "pico-de", "pico-es" or "pico-fr", a Piper voice of models.toml, or the path of a
    Piper voice's .onnx file. Or a voice of another server with OpenAI's API, like
    "openai:http://gpu-box:8880/v1#nova", or of another package, like "plugin:argument". Where it
    is known to speak another language than a call's, that language's own voice speaks."""
    threads: Threads = 1
    """Processor threads of the voice. Beside a busy language model a second thread slows both down
    on two cores."""
    fallback_voice: str = "hibari"
    """With a voice of another server: a voice of this process, named like `voice`, which speaks
    where the server does not. Empty: none; callers then get what was synthesized before, or
    text."""
    remote_model: str = "tts-1"
    """With a voice of another server: what the server calls the model that speaks with it."""
    remote_rate_hz: Annotated[int, Between(8_000, 192_000)] = 24_000
    """With a voice of another server: sample rate of its PCM where the server does not say it."""
    remote_key_env: KeyVariable = ""
    """With a voice of another server: name of the variable of halfsec's environment that has the
    API key. It is sent to the servers of all such voices. Empty: no key is sent."""
    remote_headers: dict[str, str] = field(default_factory=dict)
    """With a voice of another server: headers of every request, each with the name of the variable
    of halfsec's environment that has the value."""
    remote_extra_body: dict[str, Any] = field(default_factory=dict)
    """With a voice of another server: fields added to every request, a table like
    { instructions = "Speak calmly." }."""
    remote_timeout_s: Annotated[float, Between(0.5, 60)] = 4.0
    """With a voice of another server: longest wait for the first sound of a piece of text, and
    between two. Then `fallback_voice` speaks, or the caller hears an apology."""


@dataclass(frozen=True, slots=True)
class LatencySettings:
    """`[latency_budget]`: target, enforcement, the turn store and trace export."""

    total_ms: BudgetMs = TARGET_MS
    """Target from the caller's last word to the first audible answer."""
    enforce: bool = True
    """Act where answers are about to be late: shorter first clauses, fewer partial transcripts, and
    so on. false: only measure."""
    admission: bool = True
    """Reject a call that would make the answers of current calls late, by the latest turns and the
    load of the processor. false: only `agent.max_sessions` counts."""
    rehearse: Annotated[
        str,
        Matching(
            r"|asr\+[0-9]{1,5}|(llm|tts)x[1-9][0-9]?",
            '"asr+300", "llmx3" or "ttsx3", with any number',
        ),
    ] = ""
    """Make one stage slower on purpose, to test the enforcement. Empty: none."""
    store: bool | PostgresUrl = True
    """Keep the record of every turn: times, no audio. true: in HALFSEC_HOME/turns.sqlite. An
    address like "postgresql://USER:PASSWORD@HOST/DATABASE": in a PostgreSQL database, which all
    servers of a fleet may share; needs the extra `postgres`. The address is shown nowhere with its
    user and password. false: in memory only, a bounded number."""
    replica: Annotated[
        str, Matching(r"[^\s\x00-\x1f]{0,100}", "a name without spaces, of at most 100 characters")
    ] = ""
    """Name of this server in the store. Empty: its host name and port."""
    store_texts: bool = False
    """Keep the words of caller and agent there as well, and send them to `otlp_endpoint`."""
    store_days: Annotated[int, Between(1, 36_500)] = 90
    """Days after which turns are deleted. Of servers that share a store the lowest counts."""
    store_turns: Annotated[int, Between(1, 10_000_000)] = 200_000
    """Most turns that are kept, at some 1.3 kB each. Of servers that share a store the lowest
    counts."""
    otlp_endpoint: Annotated[
        str, Matching(r"(https?://[^\s/?#@]+(/[^\s?#@]*)?)?", "empty, or like http://HOST:4318")
    ] = ""
    """Address of an OpenTelemetry collector for a trace of every turn, like http://localhost:4318;
    needs the extra `otel`. Keys belong into OTEL_EXPORTER_OTLP_HEADERS. Words are sent only with
    `store_texts`. Empty: none."""


@dataclass(frozen=True, slots=True)
class Example:
    """One example exchange for the model."""

    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """`[agents.NAME]`: one agent. Missing settings are taken from `[agents.default]`."""

    instructions: str = "You are a friendly voice assistant. Answer in one or two short sentences."
    """The prompt: who the agent is and how it speaks."""
    opening: str = ""
    """Added to the instructions where `agent.first_clause` is on: how an answer should begin. A
    client that sets its own instructions replaces both."""
    greeting: str = ""
    """Spoken when the call begins; empty: the caller speaks first."""
    voice: str | None = None
    """Voice of this agent. Not set: that of `[tts]`."""
    language: str | None = None
    """Language of this agent's calls, like `agent.language`. Not set: that of `[agent]`."""
    pace_ms: PaceMs | None = None
    """Shortest time to an answer of this agent. Not set: that of `[agent]`."""
    budget_ms: BudgetMs | None = None
    """Target from the caller's last word to this agent's answer. Not set:
    `latency_budget.total_ms`."""
    preset: str | None = None
    """Preset whose prompt this agent inherits. The models are the server's."""
    tools: tuple[dict[str, Any], ...] = ()
    """Functions that the client runs, in the form of the Realtime API's `tools`, a list like
    [{ type = "function", name = "lamp", parameters = { type = "object" } }]."""
    server_tools: tuple[str, ...] = ()
    """Functions that the server runs, a list like ["weather.py", "package.module", "mcp:NAME"]:
    Python functions marked with `@tool` of `agent.tools`, and tools of `[mcp.NAME]`. In telephone
    calls also "phone:hang_up", "phone:transfer" and "phone:press_keys"."""
    handoffs: tuple[str, ...] = ()
    """Agents to which this one may hand the caller, a list like ["billing", "sales"]. For each the
    model has a tool, `transfer_to_billing` and so on. This agent's own: not taken from
    `[agents.default]`."""
    handoff_description: str = ""
    """What this agent is for, told to the models of the agents that may hand callers to it. Not
    taken from `[agents.default]`."""
    examples: tuple[Example, ...] = ()
    """Example exchanges, pinned before the conversation."""


def voice_language(name: str) -> str | None:
    """Language of a voice by its name; None where the name does not say it."""
    if name == "hibari" or name.startswith("hibari-"):
        return languages.ENGLISH.code
    codes = {profile.voice: code for code, profile in languages.PROFILES.items()}
    return codes.get(name)


def _default_agents() -> Mapping[str, AgentProfile]:
    return {DEFAULT_AGENT: AgentProfile()}


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One setting with its value and origin, for printing."""

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
    webrtc: WebRtcSettings = field(default_factory=WebRtcSettings)
    agents: Mapping[str, AgentProfile] = field(default_factory=_default_agents)
    """Agents by name; `default` always exists."""
    mcp: Mapping[str, McpSettings] = field(default_factory=dict)
    """MCP servers by name."""
    webhooks: Mapping[str, WebhookSettings] = field(default_factory=dict)
    """Webhook endpoints by name."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Origin of each key that is not at its default: "agent.port" -> "environment variable
    PORT"."""

    def profile(self, name: str | None) -> tuple[str, AgentProfile]:
        """The agent of this name, with its name; the default agent for an unknown one."""
        if name is None or name not in self.agents:
            name = DEFAULT_AGENT
        return name, self.agents[name]

    @property
    def is_chosen(self) -> bool:
        """True if the preset was chosen for the machine; its origin says why."""
        return self.origins.get("agent.preset", "").startswith(CHOSEN)

    def answering_model(self) -> dict[str, str]:
        """Name of the language model, its preset, and why that was taken."""
        origin = self.origins.get("agent.preset", "")
        return {
            "name": shown_model(self.llm_engine.model),
            "preset": self.agent.preset,
            "why": origin.removeprefix(CHOSEN) if self.is_chosen else origin,
        }

    @property
    def voices(self) -> tuple[str, ...]:
        """All voices that the settings name, the default one first, then those of the agents."""
        spoken = [self.voice(profile) for profile in self.agents.values()]
        return tuple(dict.fromkeys([self.tts.voice, *spoken]))

    @property
    def local_voices(self) -> tuple[str, ...]:
        """The voices of this process: that of `tts.fallback_voice` where another one is not."""
        local = [voice for voice in self.voices if not is_remote(voice)]
        if self.tts.fallback_voice and len(local) < len(self.voices):
            local.append(self.tts.fallback_voice)
        return tuple(dict.fromkeys(local))

    @property
    def own_language(self) -> str:
        """Language of the calls of agents that say no other."""
        return languages.until_found(self.agent.language) or self.asr.language

    def language(self, profile: AgentProfile) -> str:
        """Language of this agent's calls, or in which they begin."""
        return languages.until_found(profile.language or "") or self.own_language

    def finds_language(self, profile: AgentProfile) -> bool:
        """True if the language of this agent's calls is found by what the caller says."""
        return (profile.language or self.agent.language) == languages.AUTO

    @property
    def call_languages(self) -> tuple[str, ...]:
        """Languages of all agents, the server's own first; all complete ones, where an agent finds
        them."""
        spoken = [self.language(profile) for profile in self.agents.values()]
        if any(self.finds_language(profile) for profile in self.agents.values()):
            spoken += languages.PROFILES
        return tuple(dict.fromkeys([self.own_language, *spoken]))

    def voice(self, profile: AgentProfile) -> str:
        """Voice of this agent, as the settings name it."""
        return profile.voice or self.voice_in(self.language(profile))

    def voice_in(self, language: str) -> str:
        """Voice of calls in a language by agents that name none: that of `[tts]`, unless it is
        known to speak another language and this one has a voice of halfsec's."""
        spoken, profile = voice_language(self.tts.voice), languages.profile_of(language)
        if spoken in (None, language) or profile is None:
            return self.tts.voice
        return profile.voice

    def sentences(self, language: str) -> languages.Sentences:
        """Sentences that the service says in calls of this language. The settings' own are of the
        server's language."""
        profile = languages.profile_of(language) or languages.profile_of(self.own_language)
        own, usual = self.agent, ServiceSettings()
        known = (profile or languages.ENGLISH).sentences
        openers = known.openers if own.openers else ()
        said = replace(known, openers=openers, tool_wait=known.tool_wait if own.tool_wait else "")
        if language != self.own_language and languages.is_complete(language):
            return said
        prompt, wait = own.idle_prompt, own.tool_wait
        return replace(
            said,
            openers=own.openers,
            idle_prompt=known.idle_prompt if prompt == usual.idle_prompt else prompt,
            tool_wait=said.tool_wait if wait == usual.tool_wait else wait,
        )

    def telephony_in(self, language: str) -> TelephonySettings:
        """`[telephony]` for a call in this language: sentences that are not set, or are of another
        language than the call's, are the language's own."""
        profile, usual, phone = languages.profile_of(language), TelephonySettings(), self.telephony
        if profile is None:
            return phone
        is_own = language == self.own_language
        changes = {}
        for name in ("limit_notice", "announcement", "transfer_unanswered"):
            text = getattr(phone, name)
            if text and (text == getattr(usual, name) or not is_own):
                changes[name] = getattr(profile.sentences, name)
        return replace(phone, **changes)

    def pace_ms(self, profile: AgentProfile) -> int:
        """Shortest time to an answer of this agent, in ms."""
        return self.agent.pace_ms if profile.pace_ms is None else profile.pace_ms

    def budget_ms(self, profile: AgentProfile) -> int:
        """Target of this agent's answers, in ms."""
        total_ms = self.latency_budget.total_ms
        return total_ms if profile.budget_ms is None else profile.budget_ms

    def effective(self) -> Iterator[EffectiveSetting]:
        """Every setting with its value and origin, in the order of the sections."""
        for section in SECTIONS:
            for key, value in asdict(getattr(self, section)).items():
                yield self._effective(f"{section}.{key}", value)
        groups: tuple[tuple[str, Mapping[str, Any]], ...] = (
            ("agents", self.agents), ("mcp", self.mcp), ("webhooks", self.webhooks),
        )  # fmt: skip
        for group, tables in groups:
            for name, table in tables.items():
                for key, value in asdict(table).items():
                    yield self._effective(f"{group}.{name}.{key}", value)

    def _effective(self, key: str, value: object) -> EffectiveSetting:
        if key == "agent.state_store":  # it may hold a password
            value = shown_state_store(str(value))
        if key.startswith("webhooks.") and key.endswith(".url"):  # it may hold a token
            value = shown_webhook(str(value))
        if key.startswith("mcp.") and key.endswith(".url"):  # its query may hold a key
            address, mark, _ = str(value).partition("?")
            value = f"{address}{mark and '?...'}"
        return EffectiveSetting(key, value, self.origins.get(key, "default"))

    def fingerprint(self) -> str:
        """16 hex digits, equal exactly where every setting is equal. Heads each trace."""
        values = {setting.key: setting.value for setting in self.effective()}
        text = json.dumps(values, sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def remote_models(config: Config, section: RemoteSection) -> list[RemoteModel]:
    """Models on other servers that a section names; for the voices, the agents' as well."""
    found = {
        "llm_engine": [config.llm_engine.model],
        "asr": [config.asr.model],
        "tts": [*config.voices],
    }[section]
    return [parse_remote(each, section) for each in found if is_remote(each)]


SECTIONS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "agent": ServiceSettings,
        "asr": AsrSettings,
        "llm_engine": LlmSettings,
        "tts": TtsSettings,
        "latency_budget": LatencySettings,
        "telephony": TelephonySettings,
        "access": AccessSettings,
        "webrtc": WebRtcSettings,
    }
)
