"""Chat template: a model's own rules for writing a conversation as tokens.

A template is a Jinja program that renders the whole conversation to text. Rendering and encoding
all of it for every turn would be slow and, worse, would encode the model's own replies again:
other tokens for the same text mean that nothing cached fits. So only what stands *around* the
messages is taken from the template: rendered with placeholders for contents, a conversation falls
apart into gaps, and a gap's ids are joined with the ids of contents, which never change.

In most templates the gap between two messages depends on their two roles alone. Then the gaps can
be looked up, and a longer conversation begins with exactly the ids of the shorter one.
`ChatTemplate` verifies this at start-up on five turns, against encoding the rendered text in one
piece. Templates for which it does not hold (some write the last reply differently from earlier
ones) are rendered for each prompt; the engine then recomputes from where the ids begin to differ.
With tools in it, a template is rendered for some short conversations, with calls and without: where
every two roles have the same gap in all of them, it is looked up as well. Rendering takes the event
loop 0.8 ms at ten turns and 20 kB of tools, 3.7 at a hundred, for every new order of roles.

Contents never pass through the template or the encoding of control tokens, so whatever a client
sends stays text. Definitions of tools do pass through: wherever one spells a control token, a mark
is put into it first, at which the text is cut again before it is encoded.
"""

import contextlib
import copy
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import jinja2
from jinja2.ext import LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llm_engine.errors import ModelError, RequestError

from .thinking import opens_thought

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation."""

    role: Role
    text: str
    markup: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """Start and end of each of the model's own markers in a reply: these are encoded as control
    tokens. Must not be set for text of a client."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Token ids that the template writes before a message's content."""

    token_ids: tuple[int, ...]
    lead: str = ""
    """Spaces that the template writes directly before the content: they are encoded with it, since
    tokens usually take the space before a word along."""


_PROBE: tuple[tuple[Role, str], ...] = (
    ("system", "Be brief."),
    ("user", "Hello there."),
    ("assistant", "Hi, how can I help?"),
    ("user", "What time is it?"),
    ("assistant", "It is noon."),
)
_NOTED: tuple[tuple[Role, ...], ...] = (
    ("system", "user", "assistant", "system", "user", "assistant", "user"),
    ("system", "system", "user", "assistant", "user"),
)
"""Conversations with a second system message, such as a summary of older turns."""
_WITH_RESULTS: tuple[tuple[Role, ...], ...] = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user", "assistant", "user"),
    ("system", "user", "assistant", "user", "assistant", "user", "assistant", "user"),
    ("system", "user", "assistant", "tool"),
    ("system", "user", "assistant", "tool", "tool"),
    ("user", "assistant", "tool", "user"),
    *(
        ("system", "user", "assistant", "tool", *later, "assistant", "user", "assistant", "user")
        for later in ((), ("tool",), ("assistant", "user", "assistant", "tool", "assistant"))
    ),
)
"""Conversations in which tools were called, and none was. None ends with a reply: some templates
write the last one differently."""
_AFTER_REPLY: tuple[tuple[Role, ...], ...] = (
    ("user", "assistant"),
    ("system", "user", "assistant", "user", "assistant"),
    ("system", "user", "assistant", "tool", "assistant"),
)
"""Conversations that end with a reply: so their tokens are counted between two turns."""
_OTHER = {"user": "assistant", "assistant": "user"}
_START, _END = "start", "end"
"""Pseudo-roles for the beginning and for the generation prompt."""
_THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch thoughts: Qwen3, SmolLM3 and GLM; DeepSeek and Granite."""
_CUT = "\ue002"
"""Mark that separates the halves of a control token's name."""
_PROBE_CALL: Any = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "probe_call", "arguments": {"key": "value"}},
}
_PROBE_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "x",
        "parameters": {"type": "object", "properties": {}},
    },
}


class ChatTemplate:
    """A compiled template and its gaps, with the model's thoughts switched off. Any thread may use
    it."""

    def __init__(
        self,
        source: str,
        encode_template: Callable[[str], list[int]],
        encode: Callable[[str], list[int]],
        *,
        bos: str,
        eos: str,
        control_texts: Collection[str] = (),
    ) -> None:
        """`control_texts`: texts that `encode_template` encodes as single tokens. Raises ModelError
        when the template cannot be used at all."""
        self._control_texts = frozenset(control_texts)
        self._encode_template = encode_template
        self._encode = encode
        self._gap_ids: Callable[[str], tuple[int, ...]]
        self._constants: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            **dict.fromkeys(_THINKING_SWITCHES, False),
        }
        try:
            self._template = _compiled(source)
            self._roles_stripped = frozenset(
                role for role in ("system", "user") if not self._keeps(role, " \ue000 ")
            )
            # Llama 3 writes what a tool returned as a string of JSON.
            self._quotes_results = not self._keeps("tool", 'x"\ue000')
            self._read_gaps()
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template fails: {error}") from None

    def is_control(self, text: str) -> bool:
        """True if the template writes this text as a single token."""
        return text in self._control_texts

    def probe_calls(self) -> str:
        """Render a tool definition and a call of `probe_call` with {"key": "value"}; "" where the
        template has no tools."""
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]},
        ]
        try:
            text = self._render(messages, False, tools=[_PROBE_TOOL])
        except jinja2.TemplateError:
            return ""
        return text if "probe_tool" in text else ""

    def with_thinking(self, thinks: bool) -> "ChatTemplate":
        """This template with the model's thoughts switched on or off, where it has a switch.

        Takes some milliseconds, on any thread. Raises RequestError where the template then fails.
        """
        switched = copy.copy(self)
        switched._constants = {**self._constants, **dict.fromkeys(_THINKING_SWITCHES, thinks)}
        try:
            switched._read_gaps()
        except jinja2.TemplateError as error:
            raise RequestError("thinking", f"the model's chat template fails: {error}") from None
        return switched

    def with_tools(self, definitions: Sequence[str]) -> "ChatTemplate":
        """This template with these tools in it, each in JSON as in OpenAI's API.

        Long definitions take a while to encode; that is done here, on any thread. Raises
        RequestError where the template refuses them.
        """
        with_tools = copy.copy(self)
        tools = [json.loads(_without_placeholders(each)) for each in definitions]
        with_tools._constants = {**self._constants, "tools": _defused(tools, self._control_texts)}
        with_tools.is_incremental = False
        with_tools._known = {}
        with_tools._gap_ids = lru_cache(maxsize=256)(self._encode_gap)
        with_tools._rendered_gaps = lru_cache(maxsize=64)(with_tools._render_gaps)
        try:
            with_tools.gaps(["user"])
        except RequestError as error:
            raise RequestError("tools", str(error).partition(": ")[2]) from None
        with contextlib.suppress(RequestError):  # some templates have no system prompt
            with_tools.gaps(["system", "user"])
        with_tools._known = with_tools._extended({}, _WITH_RESULTS)
        if with_tools._known:
            with_tools._known = with_tools._extended(with_tools._known, _AFTER_REPLY)
        return with_tools

    def gaps(self, roles: Sequence[str]) -> list[Gap]:
        """One gap before each message, and one before the reply.

        Raises RequestError when the template refuses this order of roles.
        """
        steps = list(pairwise((_START, *roles, _END)))
        if all(step in self._known for step in steps):
            return [self._known[step] for step in steps]
        try:
            return self._rendered_gaps(tuple(roles))
        except jinja2.TemplateError as refusal:
            return self._alternating_gaps(tuple(roles), refusal)

    def content(
        self, role: str, text: str, gap: Gap, markup: Sequence[tuple[int, int]] = ()
    ) -> list[int]:
        """Ids of a message's text after its gap; `markup` as in `ChatMessage`.

        Raises RequestError for what is not text.
        """
        if role in self._roles_stripped:
            text = text.strip()
        if role == "tool" and self._quotes_results:
            text = json.dumps(text, ensure_ascii=False)[1:-1]
        ids: list[int] = []
        done = 0
        for start, end in markup:
            if self.is_control(text[start:end]):
                ids += self._encode(text[done:start]) if start > done else []
                ids += self._encode_template(text[start:end])
                done = end
        rest = text[done:] if done else gap.lead + text
        return [*ids, *self._encode(rest)] if rest or not ids else ids

    def leads(self, role: str) -> frozenset[str]:
        """Leads that the template is known to write before a content of this role."""
        leads = {gap.lead for (_, after), gap in self._table.items() if after == role}
        return frozenset(leads or {""})

    def after_reply(self) -> int | None:
        """The token that the template writes directly after a reply, to end it."""
        gap = self._table.get(("assistant", "user"))
        return gap.token_ids[0] if gap is not None and gap.token_ids else None

    def _alternating_gaps(self, roles: tuple[str, ...], refusal: Exception) -> list[Gap]:
        """Gaps for templates that insist on alternating roles: with an empty message between two of
        the same role."""
        padded: list[str] = []
        is_padding: list[bool] = []
        last = "assistant"  # a conversation opens as it goes on after a reply: with the user
        for role in (*roles, _END):
            speaker = "assistant" if role == _END else role
            if speaker == last:
                padded.append(_OTHER[speaker])
                is_padding.append(True)
            padded.append(role)
            is_padding.append(False)
            last = speaker if speaker in _OTHER else last
        padded.pop()
        try:
            gaps = self._rendered_gaps(tuple(padded))
        except jinja2.TemplateError:
            raise RequestError(
                "messages", f"the model's chat template refuses {', '.join(roles)}: {refusal}"
            ) from None
        merged: list[Gap] = []
        carried: tuple[int, ...] = ()
        for gap, padding in zip(gaps, is_padding, strict=True):
            joined = carried + gap.token_ids
            if padding:
                carried = joined + tuple(self._encode(gap.lead) if gap.lead else ())
            else:
                merged.append(Gap(joined, gap.lead))
                carried = ()
        return merged

    def _read_gaps(self) -> None:
        """Find out what stands between messages. Raises TemplateError."""
        self._gap_ids = lru_cache(maxsize=256)(self._encode_gap)
        self._rendered_gaps = lru_cache(maxsize=64)(self._render_gaps)
        self._table = self._build_table()
        self.is_incremental = self._proves_incremental()
        self._known = self._extended(self._table, _AFTER_REPLY) if self.is_incremental else {}
        """Gaps by the roles on both sides, where they depend on nothing else."""
        question = [{"role": "user", "content": "\ue000"}]
        self.opens_thought = opens_thought(self._render(question, True).partition("\ue000")[2])
        """True if the prompt ends inside a thought, which the reply has to close."""

    def _build_table(self) -> dict[tuple[str, str], Gap]:
        """Table of gaps by the roles on both sides, for the pairs that the template accepts."""
        table: dict[tuple[str, str], Gap] = {}
        roles = tuple(role for role, _ in _PROBE)
        for dialogue in (roles[:4], roles[:2], roles[1:2], roles[:1]):
            try:
                gaps = self._render_gaps(dialogue)
            except jinja2.TemplateError:
                if dialogue == roles[1:2]:
                    raise  # a template that refuses a lone user message is of no use
                continue
            for step, gap in zip(pairwise((_START, *dialogue, _END)), gaps, strict=True):
                table.setdefault(step, gap)
        for dialogue in _NOTED:
            with contextlib.suppress(jinja2.TemplateError):
                gaps = self._render_gaps(dialogue)
                steps = list(zip(pairwise((_START, *dialogue, _END)), gaps, strict=True))
                if all(gap == table.get(step, gap) for step, gap in steps):
                    table.update(steps)
        return table

    def _extended(
        self, known: dict[tuple[str, str], Gap], dialogues: Sequence[Sequence[str]]
    ) -> dict[tuple[str, str], Gap]:
        """Gaps by the roles on both sides: those that are known, and those in all of these
        dialogues that the template accepts. Nothing is added where two of them differ."""
        gaps = dict(known)
        for dialogue in dialogues:
            with contextlib.suppress(jinja2.TemplateError):
                rendered = self._render_gaps(tuple(dialogue))
                for step, gap in zip(pairwise((_START, *dialogue, _END)), rendered, strict=True):
                    if gaps.setdefault(step, gap) != gap:
                        return known
        return gaps

    def _proves_incremental(self) -> bool:
        """True if looked-up gaps give the ids of the rendered text, over five turns."""
        try:
            text = self._render([{"role": role, "content": text} for role, text in _PROBE], False)
        except jinja2.TemplateError:
            return False
        ids: list[int] = []
        for (before, _), (role, content) in pairwise(((_START, ""), *_PROBE)):
            gap = self._table.get((before, role))
            if gap is None:
                return False
            ids += [*gap.token_ids, *self._encode(gap.lead + content)]
        # What the template writes after the last reply belongs to the next gap.
        whole = self._encode_template(text)
        after_reply = self._table.get(("assistant", "user"), Gap(())).token_ids
        is_prefix = whole[: len(ids)] == ids
        same_prompt = self._table.get(("user", "assistant")) == self._table.get(("user", _END))
        rest = tuple(whole[len(ids) :])
        return is_prefix and same_prompt and after_reply[: len(rest)] == rest

    def _keeps(self, role: str, text: str) -> bool:
        """True if the template writes a content unchanged."""
        messages = [{"role": role, "content": text}]
        if role == "system":
            messages.append({"role": "user", "content": "x"})
        if role == "tool":
            messages.insert(0, {"role": "user", "content": "x"})
        try:
            return text in self._render(messages, True)
        except jinja2.TemplateError:
            return True

    def _encode_gap(self, text: str) -> tuple[int, ...]:
        return tuple(
            token_id
            for part in text.split(_CUT)
            if part
            for token_id in self._encode_template(part)
        )

    def _render_gaps(self, roles: tuple[str, ...]) -> list[Gap]:
        placeholders = [f"\ue000{index}\ue001" for index in range(len(roles))]
        messages = [
            {"role": role, "content": placeholder}
            for role, placeholder in zip(roles, placeholders, strict=True)
        ]
        rest = self._render(messages, True)
        texts = []
        for placeholder in placeholders:
            text, found, rest = rest.partition(placeholder)
            if not found or placeholder in rest:
                raise jinja2.TemplateError("it leaves out or repeats a message")
            texts.append(text)
        gaps = [self._gap(text, role) for text, role in zip(texts, roles, strict=True)]
        return [*gaps, Gap(self._gap_ids(rest))]

    def _gap(self, text: str, role: str) -> Gap:
        # A reply follows its gap as it was generated: no space can be moved into it afterwards.
        stem = text if role == "assistant" else text.rstrip(" ")
        return Gap(self._gap_ids(stem), text[len(stem) :])

    def _render(self, messages: list[dict[str, Any]], generation_prompt: bool, **more: Any) -> str:
        settings = {**self._constants, **more}
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=generation_prompt, **settings
            )
            text.encode()
        except jinja2.TemplateError:
            raise
        except Exception as error:  # a template is a third party's program
            raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from None
        return text


def _compiled(source: str) -> jinja2.Template:
    """Compile a template. Raises TemplateError for anything that is none."""
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError:
        raise
    except Exception as error:
        raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from None


def _environment() -> jinja2.Environment:
    """Jinja environment as model authors expect it, sandboxed to its arguments."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension]
    )

    def raise_exception(message: str) -> Any:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **_: Any) -> str:
        # Jinja's own filter escapes for HTML, which is not what models were trained with.
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = to_json
    return environment


def _defused(value: Any, names: Collection[str]) -> Any:
    """Copy of a JSON value in which a mark breaks each of these names, in every string."""
    if isinstance(value, str):
        for name in names:
            value = value.replace(name, f"{name[:1]}{_CUT}{name[1:]}")
        return value
    if isinstance(value, dict):
        return {_defused(name, names): _defused(each, names) for name, each in value.items()}
    if isinstance(value, list):
        return [_defused(each, names) for each in value]
    return value


def _without_placeholders(text: str) -> str:
    """Text without the characters that serve as placeholders of contents."""
    return re.sub("[\ue000-\ue002]", "", text)
