"""Conversation: its items in order, without words that were not heard.

Items are what clients see (`item_...` ids, a chain of `previous_item_id`); the language model's
token ids belong to the engine. After a barge-in an assistant item holds exactly the words that the
caller heard, and the engine cuts its ids at the same character.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NewType

from agent.errors import ClientError

ItemId = NewType("ItemId", str)
ROOT: Final = ItemId("root")
"""Value of `previous_item_id` that puts the item in front of all others."""

NO_SUCH_ITEM: Final = "item_not_found"
"""Error code of a missing item."""

Role = Literal["system", "user", "assistant"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Modality = Literal["audio", "text"]

MAX_ITEMS: Final = 1000
"""Limit of items. A conversation of an hour has about 600; without a limit a client could exhaust
memory."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a tool, as the language model wrote it."""

    name: str
    arguments: str
    """A JSON object."""


@dataclass(frozen=True, slots=True)
class ToolRound:
    """Server tools called together in the middle of a reply. Clients don't see it."""

    at_char: int
    """Character of the reply at which the model's words before the calls end."""
    resumes_at: int
    """Character at which its words after them begin. The filler spoken meanwhile lies between."""
    calls: tuple[ModelCall, ...]
    results: tuple[str, ...]
    """Result of each call, as the model reads it."""


KEYS_ITEM: Final = "keys_"
"""Beginning of the ids of messages with keys that a caller pressed on a telephone, such as a card's
number: the model is told of them, and no record."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something said or typed."""

    id: ItemId
    role: Role
    modality: Modality
    """A spoken message has a transcript, a typed one has text."""
    text: str | None
    """None while a spoken message has no transcript yet."""
    status: ItemStatus = "completed"
    continues: ItemId | None = None
    """The item that this one continues, so that the model reads both as one: a resumed reply, or
    the caller's reopened message."""
    rounds: tuple[ToolRound, ...] = ()
    """Tool rounds of an agent's reply, counted from its first item."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    id: ItemId
    call_id: str
    name: str
    arguments: str
    """JSON, as generated."""
    status: ItemStatus = "completed"


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    id: ItemId
    call_id: str
    output: str
    status: ItemStatus = "completed"


Item = Message | FunctionCall | FunctionOutput


def open_calls_of(items: Iterable[Item]) -> list[FunctionCall]:
    """Calls of the client's tools among these items without an output among them."""
    items = tuple(items)
    answered = {item.call_id for item in items if isinstance(item, FunctionOutput)}
    return [
        item
        for item in items
        if isinstance(item, FunctionCall)
        and item.status == "completed"
        and item.call_id not in answered
    ]


@dataclass(frozen=True, slots=True)
class ItemReference:
    """Reference to an item of the conversation."""

    id: ItemId


class ConversationItems:
    """Items of one session's conversation, in order. Not thread-safe."""

    def __init__(self) -> None:
        self._items: dict[ItemId, Item] = {}
        self._order: list[ItemId] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Item]:
        return (self._items[item_id] for item_id in self._order)

    def __reversed__(self) -> Iterator[Item]:
        return (self._items[item_id] for item_id in reversed(self._order))

    def __contains__(self, item_id: ItemId) -> bool:
        return item_id in self._items

    def get(self, item_id: ItemId) -> Item:
        """Raises ClientError where there is no such item."""
        try:
            return self._items[item_id]
        except KeyError:
            raise ClientError(
                f"There is no item {item_id!r} in this conversation.",
                code=NO_SUCH_ITEM,
                param="item_id",
            ) from None

    def add(self, item: Item, after: ItemId | None = None) -> ItemId | None:
        """Append, or insert after `after` (`ROOT`: in front). Returns the id of the item before.

        Raises ClientError for an id that is taken, an unknown `after`, or a full conversation.
        """
        if item.id in self._items:
            raise ClientError(
                f"An item {item.id!r} exists already.",
                code="item_create_duplicate_item_id",
                param="item.id",
            )
        if len(self._order) >= MAX_ITEMS:
            raise ClientError(
                f"A conversation holds at most {MAX_ITEMS} items; delete some first.",
                code="conversation_full",
            )
        index = self._index_after(after)
        self._items[item.id] = item
        self._order.insert(index, item.id)
        return self._order[index - 1] if index else None

    def _index_after(self, after: ItemId | None) -> int:
        if after is None:
            return len(self._order)
        if after == ROOT:
            return 0
        if after not in self._items:
            raise ClientError(
                f"There is no item {after!r} to put this one after.",
                code=NO_SUCH_ITEM,
                param="previous_item_id",
            )
        return self._order.index(after) + 1

    def update(self, item: Item) -> None:
        """Replace an item by a changed one. Raises ClientError where it is gone."""
        self.get(item.id)
        self._items[item.id] = item

    def set_text(
        self,
        item_id: ItemId,
        text: str | None,
        status: ItemStatus,
        rounds: Sequence[ToolRound] = (),
    ) -> None:
        """Raises ClientError where the item is gone or is no message."""
        item = self.get(item_id)
        if not isinstance(item, Message):
            raise ClientError(f"Item {item_id!r} is no message.", code="item_not_a_message")
        self._items[item_id] = replace(item, text=text, status=status, rounds=tuple(rounds))

    def has_call(self, call_id: str) -> bool:
        """True if a tool was called under this id."""
        return any(isinstance(item, FunctionCall) and item.call_id == call_id for item in self)

    @property
    def has_open_call(self) -> bool:
        """True while a tool of the client was called whose output is missing."""
        return bool(open_calls_of(self))

    def delete(self, item_id: ItemId) -> None:
        """Raises ClientError where there is no such item."""
        self.get(item_id)
        del self._items[item_id]
        self._order.remove(item_id)

    def make_room(self) -> list[ItemId]:
        """Delete the oldest items so that one more fits: what is spoken can't be refused.

        Returns the ids that are gone.
        """
        gone = self._order[: max(0, len(self._order) + 1 - MAX_ITEMS)]
        for item_id in gone:
            self.delete(item_id)
        return gone

    def last_id(self) -> ItemId | None:
        return self._order[-1] if self._order else None
