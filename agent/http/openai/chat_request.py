"""Parser of chat completion requests. Pure; see `chat.py`.

Checked against the API's reference and the fields that serving benchmarks add (`ignore_eos`,
`min_tokens`, `top_k`, `min_p`, `repetition_penalty`). What would change the answer and is not
supported is refused by name; unknown fields are ignored, as clients send many. Tools and forms of
answers are read in `agent.stages.openai_tools`; answers are written in `chat_response`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from agent.stages.openai_tools import parse_answer, parse_calls, parse_tools, short
from agent.stages.tool_call_adapter import ToolLimits, num_tool_rounds
from llm_engine.chat.call_reader import CallReader
from llm_engine.chat.template import ChatMessage, Role
from llm_engine.chat.thinking import without_first_thought
from llm_engine.chat.tool_calls import NO_TOOLS, CallingMessage, Dialect, ToolUse
from llm_engine.config import SamplingParams
from llm_engine.errors import RequestError
from llm_engine.structured_output.grammar import Grammar, Schema

MAX_MESSAGES: Final = 4096
"""More do not fit into any context."""

MAX_MODEL_CHARS: Final = 256
"""Every piece of a streamed answer repeats the name."""

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_THINKING: Final = ("enable_thinking", "thinking")
"""Names of the switch in `chat_template_kwargs`, by families of models."""
_SAMPLING: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
)
"""Fields that are called the same here and there."""
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
}
"""Fields whose other values are not supported."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Parsed request for a chat completion."""

    model: str
    messages: tuple[ChatMessage | CallingMessage, ...]
    sampling: SamplingParams
    """Without a grammar: that depends on the model, see `prompt`."""
    tools: ToolUse | None
    """None where nothing may be called."""
    answer: Schema | None
    """Format that the answer must have."""
    stream: bool
    include_usage: bool
    thinks: bool | None = None
    """Switches the model's thoughts; None: as the settings say."""

    def limited(self, limits: ToolLimits) -> Self:
        """The request with no more calls than the model may make."""
        if self.tools is None:
            return self
        use = limits.limited(self.tools, num_tool_rounds(self.messages))
        return replace(self, tools=limits.grounded(use, self.messages))

    def prompt(self, dialect: Dialect) -> tuple[list[ChatMessage], tuple[str, ...], SamplingParams]:
        """Messages, definitions of tools and sampling, as `Engine.chat` takes them."""
        shown = self.tools.shown if self.tools else ()
        messages, definitions = dialect.prompt(self.messages, shown)
        grammar: Grammar | None = None
        if self.tools is not None:
            grammar = dialect.grammar(self.tools, self.answer)
        elif self.answer is not None:
            grammar = Grammar.fitting(self.answer)
        elif any(isinstance(each, CallingMessage) for each in self.messages):
            grammar = dialect.grammar(NO_TOOLS)
        return messages, definitions, replace(self.sampling, grammar=grammar)

    def reader(self, dialect: Dialect) -> CallReader | None:
        """A parser of the calls in the answer; None without tools."""
        if self.tools is None:
            return None
        heads = dialect.reply_heads(self.tools) if self.answer is None else ()
        return CallReader(dialect, self.tools.callable, reply_heads=heads)


def parse_chat_request(body: object, defaults: SamplingParams) -> ChatRequest:
    """Read a request's JSON. Raises RequestError naming the field.

    `defaults` stand for sampling fields that the client leaves out.
    """
    if not isinstance(body, dict):
        raise RequestError("body", "must be a JSON object")
    for name, allowed in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in allowed:
            raise RequestError(name, f"{short(value)} is not supported")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError("stream_options", "must be an object")
    model = body.get("model") or ""
    if not isinstance(model, str):
        raise RequestError("model", "must be a string")
    if len(model) > MAX_MODEL_CHARS:
        raise RequestError("model", f"must have at most {MAX_MODEL_CHARS} characters")
    _require_text(model, "model")
    tools, answer = parse_tools(body), parse_answer(body)
    if answer is not None or (tools is not None and tools.must_call):
        # JSON repeats its quotes and brackets; who penalizes that gets strings without an end.
        defaults = replace(defaults, repetition_penalty=1.0)
    return ChatRequest(
        model=model,
        messages=tuple(_messages(body.get("messages"))),
        sampling=_sampling(body, defaults),
        tools=tools,
        answer=answer,
        stream=_flag(body, "stream"),
        include_usage=_flag(options, "include_usage"),
        thinks=_thinks(body),
    )


def _thinks(body: Mapping[str, Any]) -> bool | None:
    """The switch of the model's thoughts, as vLLM and SGLang take it, or as Alibaba Cloud does."""
    switches = body.get("chat_template_kwargs")
    if switches is None:
        switches = {}
    if not isinstance(switches, dict):
        raise RequestError("chat_template_kwargs", "must be an object")
    given: dict[str, bool] = {}
    for name, value in switches.items():
        field = f"chat_template_kwargs.{name}"
        if name not in _THINKING:
            listed = " and ".join(_THINKING)
            problem = f"{short(name)} is not supported; {listed} are"
            raise RequestError("chat_template_kwargs", problem)
        if value is not None:
            given[field] = _flag({field: value}, field)
    if body.get("enable_thinking") is not None:
        given["enable_thinking"] = _flag(body, "enable_thinking")
    if len(set(given.values())) > 1:
        raise RequestError("chat_template_kwargs", f"{' and '.join(given)} contradict each other")
    return next(iter(given.values()), None)


def _messages(values: object) -> list[ChatMessage | CallingMessage]:
    if not isinstance(values, list) or not values:
        raise RequestError("messages", "must be a list with at least one message")
    if len(values) > MAX_MESSAGES:
        raise RequestError("messages", f"has {len(values)} messages; {MAX_MESSAGES} are too many")
    messages: list[ChatMessage | CallingMessage] = []
    call_ids: set[str] = set()
    for index, value in enumerate(values):
        name = f"messages[{index}]"
        if not isinstance(value, dict):
            raise RequestError(name, "must be an object")
        role = value.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise RequestError(f"{name}.role", f"must be one of {', '.join(_ROLES)}")
        text = _text(value.get("content"), f"{name}.content")
        calls = parse_calls(value, name, call_ids)
        if calls:
            messages.append(CallingMessage(without_first_thought(text), calls))
            continue
        if role == "assistant":
            text = without_first_thought(text)  # some clients send it back
        answered = value.get("tool_call_id")
        if role == "tool" and not (isinstance(answered, str) and answered in call_ids):
            raise RequestError(f"{name}.tool_call_id", "must name a call of an earlier message")
        if not text.strip() and role != "tool":
            if role == "assistant":
                continue  # a reply that was cut off before its first word
            raise RequestError(f"{name}.content", "is empty")
        messages.append(ChatMessage(_ROLES[role], text))
    return messages


def _text(content: object, name: str) -> str:
    if isinstance(content, str):
        _require_text(content, name)
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise RequestError(name, "must be a string or a list of parts")
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            raise RequestError(f"{name}[{index}]", "only parts of type text are supported")
        _require_text(text, f"{name}[{index}]")
        texts.append(text)
    return "".join(texts)


def _require_text(text: str, name: str) -> None:
    """JSON can spell half a surrogate pair, which no answer could be sent with."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"character {error.start} is half of a surrogate pair, not text"
        raise RequestError(name, problem) from None


def _sampling(body: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    given = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    for name in ("max_tokens", "max_completion_tokens"):  # the newer name wins
        if body.get(name) is not None:
            given["max_tokens"] = body[name]
    stop = body.get("stop")
    if stop is not None:
        given["stop"] = (stop,) if isinstance(stop, str) else stop
        if not isinstance(given["stop"], list | tuple):
            raise RequestError("stop", "must be a string or a list of strings")
    if "ignore_eos" in given:
        given["ignore_eos"] = _flag(given, "ignore_eos")
    seed = given.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        given["seed"] = seed & ((1 << 63) - 1)  # clients send negative ones too
    return replace(defaults, **given)


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(name, "must be true or false")
    return bool(value)
