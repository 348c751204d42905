"""Which fields of OpenAI's sessions and responses are obeyed, refused or ignored.

One table for three uses: the reasons that clients are told (`halfsec.notice`), the reference page,
and the test that walks OpenAI's published types and compares each row with what the service does.

A path is that of the JSON with the type of an object in brackets where it can have several:
`audio.input.turn_detection[server_vad].threshold`, `tools[function].name`. A row holds for all that
lies inside of it and has no row of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from agent.session.api.settings import IgnoredField

Support = Literal["obeyed", "refused", "ignored"]
"""refused: an error names the field and what to do instead. ignored: the session goes on without
it, and the client is told."""

IMAGE: Final = "No model here looks at images: describe the image in an input_text part."
MCP: Final = (
    "MCP servers are the operator's to choose, as [mcp.NAME] of the settings. Offer functions of "
    "the client, or ask the operator."
)
PROMPT: Final = "No prompts are stored here: send the text as instructions."
LOGPROBS: Final = "The recognizer gives no probabilities of single tokens."
DELAY: Final = "Words are sent as soon as they do not change any more."
NOISE: Final = (
    "Audio reaches detector and recognizer as it comes: both were trained on speech with noise; "
    "no suppressor ships (How it works, End of turn, In noise)."
)
RECOGNIZER: Final = "One recognizer hears all calls: asr.model of the settings."
REASONING: Final = (
    "Whether a model thinks before it speaks is the operator's choice: llm_engine.thinking of the "
    "settings."
)
TRACING: Final = (
    "There is no dashboard of OpenAI's here: turns are traced by the operator's OpenTelemetry "
    "collector and at /v1/latency/turns."
)
NO_REPLIES: Final = "Nobody answers in a transcription session."
TRANSCRIPTS: Final = "Transcripts are sent always: the service makes them anyway."
OTHER_MODEL: Final = "A call keeps the agent that it began with."
PART_AUDIO: Final = "A part of a message is taken by its transcript; its audio is not heard."


@dataclass(frozen=True, slots=True)
class FieldSupport:
    """One row: a field, and what comes of it."""

    path: str
    support: Support
    text: str
    """What it does, what to do instead, or why it has no effect."""


def _rows(support: Support, texts: Mapping[str, str]) -> tuple[FieldSupport, ...]:
    return tuple(FieldSupport(path, support, text) for path, text in texts.items())


_FORMAT: Final = "`audio/pcm` at 24 kHz, `audio/pcmu` or `audio/pcma`."
_VOICE: Final = (
    "A voice of this service, as a name or `{id}`. For a name of OpenAI's the default voice speaks."
)
_TOOLS: Final = "Functions of the client, beside the tools of the server."
_CHOICE: Final = "`auto`, `none`, `required`, or a function by its name."
_MAX_TOKENS: Final = "1 to 4096, or `inf`: as many as the settings allow. Thoughts and calls count."

_INPUT_AUDIO: Final = (
    *_rows("obeyed", {"audio.input.format": _FORMAT}),
    *_rows("ignored", {
        "audio.input.noise_reduction": NOISE,
        "audio.input.transcription": f"`null`: {TRANSCRIPTS}",
        "audio.input.transcription.model": RECOGNIZER,
        "audio.input.transcription.delay": DELAY,
    }),
    *_rows("obeyed", {
        "audio.input.transcription.language": "Language of the call, like `de`, from the next "
        "words on: recognition, voice and what the service says. Not set: the agent's. `auto`: the "
        "one that the caller speaks, of the complete ones; `session.updated` tells it. One that "
        "can't be recognized is refused, with those that can. While models are loaded, until "
        "`session.updated`, the call goes on in the old one.",
        "audio.input.transcription.languages": "Like `language`, where it names one.",
        "audio.input.transcription.prompt": "Names and spellings to follow: not an instruction. "
        "The last 223 tokens count. A recognizer on another server gets none, which is said.",
        "audio.input.transcription.keywords": "Words to expect, put in front of the prompt.",
        "audio.input.turn_detection": "`null` is push-to-talk.",
    }),
)  # fmt: skip

_DETECTION: Final = {
    "audio.input.turn_detection[server_vad].create_response": "`false`: the client asks for each "
    "response.",
    "audio.input.turn_detection[server_vad].interrupt_response": "`false`: speech of the caller "
    "does not stop a response.",
    "audio.input.turn_detection[server_vad].idle_timeout_ms": "Silence after a reply until the "
    "agent speaks again, 5 to 30 s.",
    "audio.input.turn_detection[semantic_vad].create_response": "As with `server_vad`.",
    "audio.input.turn_detection[semantic_vad].interrupt_response": "As with `server_vad`.",
}

_DETECTED: Final = _rows("obeyed", {
    "audio.input.turn_detection[server_vad].threshold": "Probability of speech from which a frame "
    "counts, 0 to 1.",
    "audio.input.turn_detection[server_vad].prefix_padding_ms": "Audio before the first speech "
    "that is recognized with it.",
    "audio.input.turn_detection[server_vad].silence_duration_ms": "Silence that ends a turn, 32 ms "
    "to 20 s.",
    "audio.input.turn_detection[semantic_vad].eagerness": "How soon a turn is taken for over.",
})  # fmt: skip

SESSION: Final = (
    *_rows("obeyed", {
        "type": "`realtime`; `transcription` is the other kind of session.",
        "model": "The agent, when the call begins; another name is served by the default one. In "
        "a `session.update` it changes nothing, which is said.",
        "instructions": "The model's system prompt, up to 65,536 characters.",
        "output_modalities": '`["audio"]` or `["text"]`.',
        "max_output_tokens": _MAX_TOKENS,
        "tools[function]": _TOOLS,
        "tool_choice": _CHOICE,
        "parallel_tool_calls": "`false`: one call a response.",
        "truncation": "`auto`: the oldest turns are condensed to a summary, and dropped where "
        "that comes too late. `disabled`: a response for which there is no room fails. "
        "`retention_ratio`: whole turns are dropped, oldest first, until that share of the room "
        "is filled; the room is what the context or `post_instructions` leaves for messages.",
        "audio.output.format": _FORMAT,
        "audio.output.voice": _VOICE,
        "audio.output.speed": "0.25 to 1.5, from the next response on, as near as the voice comes: "
        "phonemes last whole steps, and hibari is 15 % faster at 1.25, 62 % at 1.5. Openers, "
        "fillers and the apology keep the voice's own speed.",
    }),
    *_rows("refused", {
        "prompt": PROMPT,
        "tools[mcp]": MCP,
        "tool_choice[mcp]": MCP,
    }),
    *_rows("ignored", {"include": LOGPROBS, "reasoning": REASONING, "tracing": TRACING}),
    *_INPUT_AUDIO,
    *_rows("obeyed", _DETECTION),
    *_DETECTED,
)  # fmt: skip
"""Fields of a `realtime` session."""

TRANSCRIPTION_SESSION: Final = (
    *_rows("obeyed", {"type": "`transcription`: nobody answers. Fields of replies are refused."}),
    *_rows("ignored", {"include": LOGPROBS}),
    *_INPUT_AUDIO,
    *_rows("ignored", dict.fromkeys(_DETECTION, NO_REPLIES)),
    *_DETECTED,
)
"""Fields of a `transcription` session."""

RESPONSE: Final = (
    *_rows("obeyed", {
        "instructions": "In place of the session's, for this response.",
        "output_modalities": '`["audio"]` or `["text"]`.',
        "max_output_tokens": "1 to 4096, or `inf`, in place of the session's.",
        "metadata": "Comes back with the response: 16 keys, 64 and 512 characters.",
        "conversation": "`none`: out of band, the conversation does not hold it. `auto`. Speech "
        "of the caller interrupts both; with OpenAI `none` goes on.",
        "tools[function]": _TOOLS,
        "tool_choice": _CHOICE,
        "parallel_tool_calls": "`false`: one call.",
        "audio.output.format": _FORMAT,
        "audio.output.voice": _VOICE,
        "input": "Items to answer in place of the conversation: messages, function calls and their "
        "outputs, references to items.",
    }),
    *_rows("refused", {
        "prompt": PROMPT,
        "tools[mcp]": MCP,
        "tool_choice[mcp]": MCP,
        "input[user message].content[].image_url": IMAGE,
        "input[user message].content[].detail": IMAGE,
        "input[mcp_approval_request]": MCP,
        "input[mcp_approval_response]": MCP,
        "input[mcp_call]": MCP,
        "input[mcp_list_tools]": MCP,
    }),
    *_rows("ignored", {
        "reasoning": REASONING,
        "input[user message].content[].audio": PART_AUDIO,
        "input[assistant message].content[].audio": PART_AUDIO,
    }),
)  # fmt: skip
"""Fields of `response.create`."""


def with_ignored(
    before: Sequence[IgnoredField], ignored: Mapping[str, str]
) -> tuple[IgnoredField, ...]:
    """Ignored fields of an earlier change, and those of this one: reasons by path."""
    reasons = {each.param: each.reason for each in before} | dict(ignored)
    return tuple(IgnoredField(param, reason) for param, reason in reasons.items())
