"""Tool calling: the form in which a model writes calls, and the grammar that holds it to that form.

A call is text: `<tool_call>\\n{"name": "clock", "arguments": {}}\\n</tool_call>` (the Hermes form,
also Qwen's), or for Llama 3 the bare `{"name": "clock", "parameters": {}}` as a whole reply. The
form is taken from the model's chat template; for a model whose template has no tools, or another
form for them, the Hermes form is described in the system prompt.

Some models are shown the Hermes form and leave its tags out: Qwen2.5-Coder-0.5B did in 6 of 6
calls. A reply that begins with a brace is therefore held to a bare call, too, and is never text.

Models that call badly, or never stop calling, can be given their reply as one more tool
(`REPLY_TOOL`): each reply then is exactly one call, of a tool or of that one, whose argument is
spoken. A half-billion-parameter model that described its calls and their results, instead of making
and telling them, does both so.

The grammar fixes every character around a call's name and arguments. So the parser need not be
lenient, and a call that a client sends back is written as the very text that the model wrote: the
pooled conversation is found again by it, with all its ids.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from llm_engine.structured_output.grammar import Grammar, Schema

from .template import ChatMessage

MAX_PARALLEL: Final = 8
"""Calls in one reply. Ends the loop of a small model that has begun to repeat itself."""

_REST: Final = r"([^{]|\{[\s{]*[^\s{\"])*"
"""Text without objects of JSON: in a reply that is shown tools, they would be calls that are
spoken. Small models write `>{"name": ...` where no call is allowed."""
_TEXT: Final = f"([^{{}}>|`]{_REST})?"
_WORDS: Final = f"[\\p{{L}}\\p{{N}}\"'(¿¡]{_REST}"
"""Text that is not empty, for a reply that may not call: a small model would end its turn rather
than tell what a tool answered."""
_ANY_WORDS: Final = r"\s*[^\s](?s:.*)"
"""Any text that is not empty."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    """Letters, digits, `_` and `-`."""
    definition: str
    """Definition for the prompt, in JSON as in OpenAI's API."""
    parameters: Schema


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model."""

    name: str
    arguments: str
    """JSON object, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class CallingMessage:
    """A reply that calls tools, perhaps after some text."""

    text: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class LackingTool:
    """A tool that can't be called: nothing that was said is a value of a required argument."""

    name: str
    question: str
    """Beginning of the question for the first of those arguments."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one reply."""

    shown: tuple[Tool, ...]
    """Tools in the prompt."""
    callable: tuple[Tool, ...]
    """Tools that the grammar lets the reply call; none: it must be text."""
    must_call: bool
    in_parallel: bool
    """The reply may make several calls."""
    replies_by_call: bool = False
    """The reply is one call: of `REPLY_TOOL`, which is among those shown, or of another tool."""
    tells_result: bool = False
    """The reply follows the result of a call."""
    lacking: tuple[LackingTool, ...] = ()
    """See `grounding`. A reply by call can begin to call one, and then asks the caller instead."""


NO_TOOLS: Final = ToolUse((), (), must_call=False, in_parallel=False)
"""A reply that is shown no tools, in a conversation that has calls. It is any text but a call: a
small model would go on as it began, with a call in front of the caller."""

REPLY_TOOL: Final = Tool(
    "answer_caller",
    json.dumps(
        {
            "type": "function",
            "function": {
                "name": "answer_caller",
                "description": "Say something to the caller: to tell a result, to ask for what is "
                "missing, or when no other function is needed.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "words": {
                            "type": "string",
                            "description": "what you say, one short sentence",
                        }
                    },
                    "required": ["words"],
                },
            },
        }
    ),
    Schema("tools", "{}"),
)
"""The reply in words, as a tool."""
_WORDS_HEAD: Final = '{"words": "'
_RESULT_HEAD: Final = '{"result": "'
"""Before the words that follow a tool's result. In tuning dialogues a half-billion model told 7 of
7 figures after it, and 2 of 5 in plain text ("Mark the response as ..."). After "words" it
apologized for 7 of 26 results, after "result" for 3 of 12."""
_QUESTION_HEAD: Final = '{"ask_caller": "'
"""Stands in a reply instead of the arguments of a call that lacks some."""
_QUESTION_REST: Final = r"([ ,][^\"\\\x00-\x1f`*#{}<>|_?]*)?\?"
"""Rest of a question, in the characters of `_SPOKEN`. Left to itself, a half-billion model repeats
the caller's line; shown that something is missing, it asks "What is missing?"."""
_WORDS_TAIL: Final = '"}'
_SPOKEN: Final = r"[\p{L}\p{N}'(¿¡][^\"\\\x00-\x1f`*#{}<>|_]*"
"""Words as they stand in JSON and in speech alike: nothing in them needs an escape, and nothing is
markup."""


_CALLED_WORDS: Final = re.compile(
    rf'"{REPLY_TOOL.name}"[^{{}}]*(?:{re.escape(_WORDS_HEAD)}|{re.escape(_RESULT_HEAD)})([^"]*)'
    rf'|{re.escape(_QUESTION_HEAD)}([^"]*)'
)


def spoken_words(reply: str) -> str:
    """What the caller hears of a reply as the model wrote it: the text, or the words of a reply by
    call; "" for other calls."""
    if not reply.startswith(("<tool_call>", "{")):
        return reply
    found = _CALLED_WORDS.search(reply)
    return (found[1] or found[2] or "") if found else ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Form of tool calls: opening, head, name, middle, arguments, tail, closing."""

    opening: str
    """Marker of a call after other text; "" where a call is the whole reply."""
    head: str
    middle: str
    tail: str
    closing: str
    in_template: bool = True
    """True if the chat template writes tools and their results."""

    @property
    def bare(self) -> "Dialect":
        """Dialect of a call that is a whole reply: this one without its tags."""
        return Dialect("", self.head.strip(), self.middle, self.tail.strip(), "", self.in_template)

    def reply_heads(self, use: ToolUse) -> tuple[str, ...]:
        """What may stand before the words of a reply by call, behind the opening."""
        if not use.replies_by_call:
            return ()
        words = _RESULT_HEAD if use.tells_result else _WORDS_HEAD
        heads = [f"{self.head}{REPLY_TOOL.name}{self.middle}{words}"]
        heads += [f"{self.head}{tool.name}{self.middle}{_QUESTION_HEAD}" for tool in use.lacking]
        return tuple(heads)

    def written(self, message: CallingMessage) -> ChatMessage:
        """The reply as the model wrote it, or with the tags that it left out."""
        text = message.text
        markup: list[tuple[int, int]] = []
        for call in message.calls:
            text += "\n" if text else ""
            markup.append((len(text), len(text) + len(self.opening)))
            text += f"{self.opening}{self.head}{call.name}{self.middle}{call.arguments}{self.tail}"
            markup.append((len(text), len(text) + len(self.closing)))
            text += self.closing
        return ChatMessage("assistant", text, tuple(markup))

    def prompt(
        self, messages: Iterable[ChatMessage | CallingMessage], tools: Sequence[Tool]
    ) -> tuple[list[ChatMessage], tuple[str, ...]]:
        """The messages as the model sees them, and the tool definitions for its template."""
        written = self.shown(messages)
        if self.in_template or not tools:
            return written, self.definitions(tools)
        has_system = bool(written) and written[0].role == "system"
        system = self.system(written[0].text if has_system else "", tools)
        return [ChatMessage("system", system), *written[has_system:]], ()

    def shown(self, messages: Iterable[ChatMessage | CallingMessage]) -> list[ChatMessage]:
        """The messages as the model sees them."""
        written = [
            self.written(each) if isinstance(each, CallingMessage) else each for each in messages
        ]
        return written if self.in_template else _results_as_user_messages(written)

    def definitions(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """Tool definitions for the chat template; none where it has no tools."""
        return tuple(tool.definition for tool in tools) if self.in_template else ()

    def system(self, text: str, tools: Sequence[Tool]) -> str:
        """The system prompt, with the tools in it where the chat template has none."""
        if self.in_template or not tools:
            return text
        before = f"{text}\n\n" if text else ""
        return before + _instructions(tools)

    def grammar(self, use: ToolUse, answer: Schema | None = None) -> Grammar:
        """Grammar of a reply: calls, or, unless one must be made, any text, or an answer that fits
        a schema."""
        return _grammar(self, use, answer)


@lru_cache(maxsize=32)
def _grammar(dialect: Dialect, use: ToolUse, answer: Schema | None) -> Grammar:
    if use.replies_by_call and answer is None:
        return _reply_grammar(dialect, use)
    if not use.callable:
        words = _WORDS if use.shown else _ANY_WORDS
        plain = Grammar(f"start: TEXT\nTEXT: /{words}/{_but_calls(dialect)}\n", has_text=True)
        return plain if answer is None else Grammar.fitting(answer)
    rules = _call_rules("call", dialect, use)
    opening = _quoted(dialect.opening) if dialect.opening else ""
    more = bare = ""
    if dialect.opening and use.in_parallel:
        more = f'("\\n" {opening} call){{0,{MAX_PARALLEL - 1}}}'
        bare = f'("\\n" bare){{0,{MAX_PARALLEL - 1}}}'
    if use.must_call or answer is not None:
        start = f"{opening} call {more}"
    elif dialect.opening:
        start = f"spoken call {more} | bare {bare}"
        rules += _call_rules("bare", dialect.bare, use)
        # The shortest text that ends with the marker: from there on nothing else may follow.
        rules.append(f"spoken[lazy]: /{_TEXT}{dialect.opening}/")
    else:
        start = "call"
    if not use.must_call:
        start += f" | %json {answer.text}" if answer is not None else " | TEXT"
        rules.append(f"TEXT: /{_TEXT}/")
    schemas = tuple(tool.parameters for tool in use.callable)
    return Grammar(
        "\n".join([f"start: {start}", *rules, ""]),
        schemas if answer is None else (answer, *schemas),
        has_text=answer is None and not use.must_call,
    )


def _but_calls(dialect: Dialect) -> str:
    """Rest of a terminal: its texts but those with the marker of a call, or that are a bare one."""
    bare = dialect.bare
    but = rf' & ~/\s*{re.escape(bare.head)}[^"]*{re.escape(bare.middle)}(?s:.*)/'
    if dialect.opening:
        but += f" & ~/(?s:.*){re.escape(dialect.opening)}(?s:.*)/"
    return but


def _reply_grammar(dialect: Dialect, use: ToolUse) -> Grammar:
    """Grammar of one call: of a tool that may be called, or of `REPLY_TOOL`; or of a question in
    the form of one."""
    opening = _quoted(dialect.opening) if dialect.opening else ""
    end = _quoted(_WORDS_TAIL + dialect.tail + dialect.closing)
    reply, *questions = map(_quoted, dialect.reply_heads(use))
    rules = [f"reply: {reply} SPOKEN {end}", f"SPOKEN: /{_SPOKEN}/"]
    choices = ["reply"]
    if use.callable:
        rules += _call_rules("call", dialect, use)
        choices.append("call")
    if questions:
        begun = [
            f"{head} {_quoted(tool.question)}"
            for head, tool in zip(questions, use.lacking, strict=True)
        ]
        rules += [f"question: ({' | '.join(begun)}) REST {end}", f"REST: /{_QUESTION_REST}/"]
        choices.append("question")
    start = f"start: {opening} ({' | '.join(choices)})"
    return Grammar("\n".join([start, *rules, ""]), tuple(tool.parameters for tool in use.callable))


def _call_rules(name: str, form: Dialect, use: ToolUse) -> list[str]:
    """Rules of the calls that may be made, without their opening; `name` is that of any of them."""
    rules = [
        f"{name}_{index}: {_quoted(form.head + tool.name + form.middle)} "
        f"%json {tool.parameters.text} {_quoted(form.tail + form.closing)}"
        for index, tool in enumerate(use.callable)
    ]
    return [*rules, f"{name}: " + " | ".join(f"{name}_{index}" for index in range(len(rules)))]


HERMES: Final = Dialect("<tool_call>", '\n{"name": "', '", "arguments": ', "}\n", "</tool_call>")
LLAMA: Final = Dialect("", '{"name": "', '", "parameters": ', "}", "")


def dialect_of(probe: str) -> Dialect:
    """Form of a template's own calls: see `ChatTemplate.probe_calls`."""
    call = CallingMessage("", (ToolCall("probe_call", '{"key": "value"}'),))
    for dialect in (HERMES, LLAMA):
        if dialect.written(call).text in probe:
            return dialect
    return replace(HERMES, in_template=False)


def _quoted(text: str) -> str:
    return json.dumps(text)


_RESULT_OPENING: Final = "<tool_response>"
_RESULT_CLOSING: Final = "</tool_response>"
_RESULT_TAG: Final = re.compile(f"{_RESULT_OPENING}|{_RESULT_CLOSING}")


def has_results(text: str) -> bool:
    """True for a message of the user that holds results of tools, as `Dialect.shown` writes them
    for a chat template without tools."""
    return text.startswith(_RESULT_OPENING)


def results_in(text: str) -> list[str]:
    """The results in such a message."""
    return [result for part in _RESULT_TAG.split(text) if (result := part.strip())]


def _results_as_user_messages(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Tool results as user messages, for templates without them; results in a row are one
    message."""
    shown: list[ChatMessage] = []
    follows = False
    for message in messages:
        is_result = message.role == "tool"
        if is_result:
            text = f"{_RESULT_OPENING}\n{message.text}\n{_RESULT_CLOSING}"
            if follows:
                text = f"{shown.pop().text}\n{text}"
            message = ChatMessage("user", text)
        shown.append(message)
        follows = is_result
    return shown


def _instructions(tools: Sequence[Tool]) -> str:
    definitions = "\n".join(tool.definition for tool in tools)
    return (
        "You can call functions. This is what there is, a line of JSON for each:\n"
        f"<tools>\n{definitions}\n</tools>\n"
        "To call one, reply with its name and arguments in this form:\n"
        '<tool_call>\n{"name": "the name", "arguments": {"an argument": "its value"}}\n</tool_call>'
    )
