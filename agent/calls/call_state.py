"""State of a call in the state store: its fields, written and read. Pure but for pydantic.

A record has one field for each item, so that a change writes little, and a few more:

| field | JSON |
| --- | --- |
| `head` | format, who may resume, what the call is |
| `settings`, `session` | settings and counters of the session |
| `reply`, `played` | the newest reply; how much of it was heard, which changes ten times a second |
| `earlier`, `earlier_played` | the same of replies in front of it that are still played |
| `background` | tools in the background, where there are any |
| `order`, `item:ID` | ids of the items in order; one item |

`FORMAT` changes when an older reader would misunderstand a record; then a server of another version
refuses to go on with the call, and says so. Fields that are merely added are ignored by older ones.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from agent.session.api.conversation import (
    MAX_ITEMS,
    FunctionCall,
    FunctionOutput,
    Item,
    Message,
)
from agent.session.api.session_state import BackgroundState, ReplyState, SessionState
from agent.session.api.settings import SemanticVad, ServerVad, SessionSettings

from .state_store.store import UnreadableStateError

FORMAT: Final = 1
"""Format of the records that are written and read here."""

ITEM: Final = "item:"
"""Beginning of the names of items' fields."""


@dataclass(frozen=True, slots=True)
class SavedToken:
    """A resume token, without what opens the call."""

    token_id: str
    sha256: str
    """Hex digits."""


@dataclass(frozen=True, slots=True)
class CallHead:
    """What a call is, and who may resume it."""

    session_id: str
    agent: str
    model: str
    """Name reported as the session's model."""
    fixed: tuple[str, ...]
    """Fields that the client can't change."""
    key_id: str
    """Whose call it is."""
    expires_at_unix_s: int
    received: int
    """Frames of the client that were processed."""
    tokens: tuple[SavedToken, ...]
    """Tokens that resume the call, the newest last."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class CallState:
    """State of one call."""

    head: CallHead
    session: SessionState


@dataclass(frozen=True, slots=True)
class _Session:
    """A session but for its settings, items and newest reply."""

    num_items: int
    num_replies: int
    num_calls: int
    audio_ms: int
    summary: tuple[str, ...]
    num_covered: int
    answer_due: bool
    answers_caller: bool
    apart: tuple[str, ...] = ()
    response_waits: bool = False
    has_dropped: bool = False


@dataclass(frozen=True, slots=True)
class _Played:
    """What changes in a reply while it is played."""

    in_progress: bool
    shown_chars: int
    stands_at: int | None
    played_samples: int


_HEAD: Final = TypeAdapter(CallHead)
_SESSION: Final = TypeAdapter(_Session)
_SETTINGS: Final = TypeAdapter(SessionSettings)
_REPLY: Final = TypeAdapter(ReplyState)
_PLAYED: Final = TypeAdapter(_Played)
_EARLIER: Final = TypeAdapter(tuple[ReplyState, ...])
_EARLIER_PLAYED: Final = TypeAdapter(tuple[_Played, ...])
_BACKGROUND: Final = TypeAdapter(BackgroundState)
_ORDER: Final = TypeAdapter(tuple[str, ...])
_OBJECT: Final = TypeAdapter(dict[str, Any])
_ITEMS: Final[dict[str, TypeAdapter[Any]]] = {
    "message": TypeAdapter(Message),
    "call": TypeAdapter(FunctionCall),
    "output": TypeAdapter(FunctionOutput),
}
_KIND_OF: Final[dict[type, str]] = {
    Message: "message",
    FunctionCall: "call",
    FunctionOutput: "output",
}
_DETECTIONS: Final[dict[str, TypeAdapter[Any]]] = {
    "server_vad": TypeAdapter(ServerVad),
    "semantic_vad": TypeAdapter(SemanticVad),
}

_NOTHING_PLAYED: Final = _Played(False, 0, None, 0)
_NOTHING_RUNS: Final = BackgroundState()


class CallStateEncoder:
    """Fields of one call's states. What has not changed is not written out again: settings and
    items are the same objects then. A state is written ten times a second while a reply is played,
    and settings with a hundred tools take milliseconds."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[Item, bytes]] = {}
        self._order: tuple[tuple[str, ...], bytes] | None = None
        self._settings: tuple[SessionSettings, bytes] | None = None

    def fields(self, state: CallState) -> dict[str, bytes]:
        """The fields; of settings and items that have not changed the same objects as in the last
        call. Raises ValueError for a text that is none (half of a surrogate pair)."""
        session = state.session
        if self._settings is None or self._settings[0] is not session.settings:
            self._settings = session.settings, _settings_json(session.settings)
        order = tuple(item.id for item in session.items)
        if self._order is None or self._order[0] != order:
            self._order = order, _ORDER.dump_json(order)
        fields = {
            "head": _HEAD.dump_json(state.head),
            "settings": self._settings[1],
            "session": _SESSION.dump_json(
                _Session(
                    session.num_items,
                    session.num_replies,
                    session.num_calls,
                    session.audio_ms,
                    session.summary,
                    session.num_covered,
                    session.answer_due,
                    session.answers_caller,
                    session.apart,
                    session.response_waits,
                    session.has_dropped,
                )
            ),
            "order": self._order[1],
        }
        if (reply := session.reply) is not None:
            fields["reply"] = _REPLY.dump_json(_with_played(reply, _NOTHING_PLAYED))
            fields["played"] = _PLAYED.dump_json(_played_of(reply))
        if session.earlier:
            unplayed = tuple(_with_played(each, _NOTHING_PLAYED) for each in session.earlier)
            fields["earlier"] = _EARLIER.dump_json(unplayed)
            fields["earlier_played"] = _EARLIER_PLAYED.dump_json(
                tuple(_played_of(each) for each in session.earlier)
            )
        if session.background != _NOTHING_RUNS:
            fields["background"] = _BACKGROUND.dump_json(session.background)
        items = {}
        for item in session.items:
            known = self._items.get(item.id)
            if known is None or known[0] is not item:
                known = item, _item_json(item)
            items[str(item.id)] = known
            fields[f"{ITEM}{item.id}"] = known[1]
        self._items = items
        return fields


def read_state(fields: Mapping[str, bytes]) -> CallState:
    """The state that a record has. Raises UnreadableStateError."""
    try:
        found = _OBJECT.validate_json(fields["head"]).get("format")
        if found != FORMAT:
            raise UnreadableStateError(
                f"it was recorded by another version of halfsec (format {found!r}; this one reads "
                f"{FORMAT})"
            )
        head = _HEAD.validate_json(fields["head"], strict=True)
        known = _SESSION.validate_json(fields["session"], strict=True)
        reply = None
        if "reply" in fields:
            played = _PLAYED.validate_json(fields["played"], strict=True)
            reply = _with_played(_REPLY.validate_json(fields["reply"], strict=True), played)
        earlier: tuple[ReplyState, ...] = ()
        if "earlier" in fields:
            unplayed = _EARLIER.validate_json(fields["earlier"], strict=True)
            positions = _EARLIER_PLAYED.validate_json(fields["earlier_played"], strict=True)
            if len(positions) != len(unplayed):
                raise UnreadableStateError("its record is damaged (how much was played)")
            earlier = tuple(map(_with_played, unplayed, positions))
        background = _NOTHING_RUNS
        if "background" in fields:
            background = _BACKGROUND.validate_json(fields["background"], strict=True)
        order = _ORDER.validate_json(fields["order"], strict=True)
        if len(set(order)) < len(order) or len(order) > MAX_ITEMS:
            raise UnreadableStateError("its record is damaged (the order of its items)")
        session = SessionState(
            _settings_of(fields["settings"]),
            tuple(_item_of(fields[f"{ITEM}{item_id}"]) for item_id in order),
            known.num_items,
            known.num_replies,
            known.num_calls,
            known.audio_ms,
            known.summary,
            known.num_covered,
            known.answer_due,
            known.answers_caller,
            reply,
            background,
            earlier,
            known.apart,
            known.response_waits,
            known.has_dropped,
        )
    except KeyError as error:
        raise UnreadableStateError(f"its record lacks {str(error)[:80]}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UnreadableStateError(f"its record is damaged ({where}: {first['msg']})") from None
    return CallState(head, session)


def _played_of(reply: ReplyState) -> _Played:
    return _Played(reply.in_progress, reply.shown_chars, reply.stands_at, reply.played_samples)


def _with_played(reply: ReplyState, played: _Played) -> ReplyState:
    return replace(
        reply,
        in_progress=played.in_progress,
        shown_chars=played.shown_chars,
        stands_at=played.stands_at,
        played_samples=played.played_samples,
    )


def _settings_json(settings: SessionSettings) -> bytes:
    values = _SETTINGS.dump_python(settings, mode="json")
    detection = settings.turn_detection
    if detection is not None:
        kind = "server_vad" if isinstance(detection, ServerVad) else "semantic_vad"
        values["turn_detection"] = {kind: _DETECTIONS[kind].dump_python(detection, mode="json")}
    return _json(values)


def _settings_of(text: bytes) -> SessionSettings:
    """Raises ValidationError, KeyError."""
    values = _OBJECT.validate_json(text)
    wanted = values.pop("turn_detection")
    settings = _SETTINGS.validate_json(_json(values), strict=True)
    detection = None if wanted is None else _tagged(_json(wanted), _DETECTIONS)
    return settings.changed(turn_detection=detection)


def _item_json(item: Item) -> bytes:
    kind = _KIND_OF[type(item)]
    return _json({kind: _ITEMS[kind].dump_python(item, mode="json")})


def _item_of(text: bytes) -> Item:
    """Raises ValidationError, KeyError."""
    item: Item = _tagged(text, _ITEMS)
    return item


def _tagged(text: bytes, kinds: Mapping[str, TypeAdapter[Any]]) -> Any:
    """The value of an object with one field, which is named for its kind. Raises ValidationError,
    KeyError."""
    values = _OBJECT.validate_json(text)
    kind = next(iter(values), "")
    return kinds[kind].validate_json(_json(values[kind]), strict=True)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
