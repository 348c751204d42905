"""The items of a conversation as the messages that a language model reads. Pure.

They differ in four ways. Items without words are left out. What the caller said in two halves, and
the parts of a reply that was taken up again, are one message each. A reply that called tools is the
words before the calls, what they gave, and the words after; what was said meanwhile to fill the
silence is no part of it, or the model would learn to say that in place of calling. And calls that a
client answers stand as items of their own behind the reply that made them, but belong to it; their
results stand behind them, in their order, whenever and in whatever order the client sent them: that
order alone tells the model which call a result is of.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from agent.session.api.conversation import (
    ConversationItems,
    FunctionCall,
    FunctionOutput,
    Item,
    ItemId,
    ItemReference,
    Message,
    ModelCall,
    ToolRound,
    open_calls_of,
)
from agent.session.api.settings import ResponseOptions
from agent.session.ports.stage_ports import NO_RESULT, ChatMessage


def messages_of(items: Iterable[Item]) -> list[ChatMessage]:
    """Messages of these items."""
    return [message for _, message in told(items)]


def told(
    items: Iterable[Item], apart: Collection[str] = frozenset()
) -> list[tuple[ItemId, ChatMessage]]:
    """Messages of these items, each with the item that it ends with. `apart`: ids of calls whose
    results stand in their own place, behind the same call once more: a summary has taken the call
    without its result, and servers refuse a result whose call they don't see."""
    items = tuple(items)
    rests = _rests_of_replies(items)
    outputs = {
        item.call_id: item
        for item in items
        if isinstance(item, FunctionOutput) and item.call_id not in apart
    }
    called = {item.call_id: item for item in items if _is_made(item)}
    out: list[tuple[ItemId, ChatMessage]] = []
    calls: dict[int, list[FunctionCall]] = {}
    """Calls of the client's tools, by the index of their message."""
    before: ItemId | None = None
    """The item whose message a call that comes next would belong to."""
    for item in items:
        match item:
            case Message(id=item_id) if item_id not in rests.parts:
                _tell(out, item, rests)
            case FunctionCall(name=name, arguments=arguments) if _is_made(item):
                call = ModelCall(name, arguments)
                if out and out[-1][0] == before and out[-1][1].role == "assistant":
                    message = out.pop()[1]
                    out.append((item.id, replace(message, calls=(*message.calls, call))))
                else:
                    out.append((item.id, ChatMessage("assistant", "", (call,))))
                calls.setdefault(len(out) - 1, []).append(item)
            case FunctionOutput(call_id=call_id, output=output) if call_id not in called:
                out.append((item.id, ChatMessage("tool", output)))
            case FunctionOutput(call_id=call_id, output=output) if call_id in apart:
                again = ModelCall(called[call_id].name, called[call_id].arguments)
                out.append((item.id, ChatMessage("assistant", "", (again,))))
                out.append((item.id, ChatMessage("tool", output)))
            case _:
                pass
        if not (isinstance(item, Message) and item.id in rests.parts):
            before = item.id
    return [
        each
        for index, message in enumerate(out)
        for each in (message, *_results(calls.get(index, ()), outputs))
    ]


def open_calls_among(
    items: Iterable[Item], messages: Iterable[tuple[ItemId, ChatMessage]]
) -> set[str]:
    """Ids of the calls that these messages, of these items, have without their results."""
    items = tuple(items)
    unanswered = {item.call_id for item in open_calls_of(items)}
    ends = {item_id for item_id, message in messages if message.calls}
    all_ends = {item_id for item_id, message in told(items) if message.calls}
    found: set[str] = set()
    together: list[str] = []
    """Calls of one message, which ends with the last of them."""
    for item in items:
        if _is_made(item):
            together.append(item.call_id)
            if item.id in all_ends:
                found.update(together if item.id in ends else ())
                together.clear()
    return found & unanswered


def _is_made(item: Item) -> TypeGuard[FunctionCall]:
    return isinstance(item, FunctionCall) and item.status == "completed"


def _results(
    calls: Sequence[FunctionCall], outputs: Mapping[str, FunctionOutput]
) -> Iterator[tuple[ItemId, ChatMessage]]:
    """Results of the calls of one message, up to the last that has one."""
    num_told = max((at for at, each in enumerate(calls, 1) if each.call_id in outputs), default=0)
    for call in calls[:num_told]:
        output = outputs.get(call.call_id)
        if output is None:
            yield call.id, ChatMessage("tool", NO_RESULT)
        else:
            yield output.id, ChatMessage("tool", output.output)


def response_input(options: ResponseOptions, conversation: ConversationItems) -> list[Item]:
    """The items that a response with its own chat answers, without those that are gone by now. The
    result of a function brings its call along: servers refuse one without the other."""
    if options.input is None:
        return list(conversation)
    found: list[Item] = []
    for item in options.input:
        if not isinstance(item, ItemReference):
            found.append(item)
        elif item.id in conversation:
            found.append(conversation.get(item.id))
    have = {item.call_id for item in found if isinstance(item, FunctionCall)}
    needed = {item.call_id for item in found if isinstance(item, FunctionOutput)} - have
    calls = {
        item.call_id: item
        for item in conversation
        if isinstance(item, FunctionCall) and item.call_id in needed
    }
    out: list[Item] = []
    for item in found:
        if isinstance(item, FunctionOutput) and item.call_id in calls:
            out.append(calls.pop(item.call_id))
        out.append(item)
    return out


def joined(beginning: str, rest: str) -> str:
    """One message of two parts, either of which may be empty."""
    return f"{beginning.strip()} {rest.strip()}".strip() if beginning else rest


def _tell(out: list[tuple[ItemId, ChatMessage]], item: Message, rests: "_Rests") -> None:
    text = (item.text or "") + rests.texts.get(item.id, "")
    rounds = max(item.rounds, rests.rounds.get(item.id, ()), key=len)
    if rounds:
        out.extend((item.id, message) for message in _with_rounds(text, rounds))
    elif text.strip():
        if out and out[-1][0] == item.continues and out[-1][1].role == item.role:
            text = joined(out.pop()[1].text, text)
        out.append((item.id, ChatMessage(item.role, text)))


def _with_rounds(text: str, rounds: tuple[ToolRound, ...]) -> Iterator[ChatMessage]:
    """Messages of an assistant item. `text` may end sooner than the model's words: what was not
    heard is left out."""
    start = 0
    for each in rounds:
        yield ChatMessage("assistant", text[start : each.at_char], each.calls)
        for result in each.results:
            yield ChatMessage("tool", result)
        start = each.resumes_at
    if text[start:].strip():
        yield ChatMessage("assistant", text[start:])


@dataclass(frozen=True, slots=True)
class _Rests:
    """Continuations of replies that were resumed, once or more."""

    texts: dict[ItemId, str]
    """Text of the continuations, by the item that the reply begins with."""
    rounds: dict[ItemId, tuple[ToolRound, ...]]
    """Tool calls of the reply and its continuations, by the item that the reply begins with."""
    parts: set[ItemId]
    """Those after that."""


def _rests_of_replies(items: Iterable[Item]) -> _Rests:
    rests = _Rests({}, {}, set())
    begins: dict[ItemId, ItemId] = {}
    """First item of the reply, by each of its items."""
    for item in items:
        if isinstance(item, Message) and item.role == "assistant":
            begins[item.id] = item.id
            if item.continues in begins:
                begin = begins[item.id] = begins[item.continues]
                rests.texts[begin] = rests.texts.get(begin, "") + (item.text or "")
                rests.rounds[begin] = max(rests.rounds.get(begin, ()), item.rounds, key=len)
                rests.parts.add(item.id)
    return rests
