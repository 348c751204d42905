"""Documents of ended calls, and the queue of webhook messages about them, in the turn store.

Both are written in one transaction by the store's thread. A message stays in the queue until an
endpoint has taken it or the sender gives it up, over restarts of the server. Servers that share a
database share the queue: `claim` takes a message for some time, so that one of them sends it. What
a server claimed and did not settle, because it was killed, is due again after that time.
"""

from dataclasses import dataclass
from typing import Final

from latency_budget.account.clock import NS_PER_S

from .database import Place, StoreConnection
from .store_query import connected

MAX_QUEUED: Final = 10_000
"""Messages that wait for one endpoint. One more is dropped and counted: an endpoint that is gone
for good must not fill the disk."""

DOCUMENT_ROWS: Final = 10
"""Turns that the limit of the store counts a document for: it has some 0.5 kB for each turn."""

MAX_AHEAD_NS: Final = 7200 * NS_PER_S
"""A message that is due later than this was queued by a clock that was ahead. Pauses are an hour at
most: a shorter time would try those too soon, a longer one holds messages when a clock is put
back."""

MAX_QUEUED_DAYS: Final = 8
"""Days after which a message is deleted, for whatever endpoint: endpoints give up after a week at
most, and one that was taken out of the settings never asks for its messages."""


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """One message for one endpoint."""

    endpoint: str
    """Name of the endpoint in the settings."""
    message_id: str
    body: str
    """JSON, as it is sent and signed."""


@dataclass(frozen=True, slots=True)
class EndedCall:
    """Document of a call that is over, and the messages about its end."""

    session: str
    ended_unix_ns: int
    document: str
    """JSON."""
    messages: tuple[WebhookMessage, ...] = ()
    replica: str = ""

    @property
    def num_chars(self) -> int:
        """Length of all texts."""
        return len(self.document) + sum(len(each.body) for each in self.messages)


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message that is due, taken for one attempt."""

    row: int
    message_id: str
    body: str
    created_unix_ns: int
    num_attempts: int
    """Attempts so far, this one included."""


def insert_ended(connection: StoreConnection, ended: EndedCall) -> list[WebhookMessage]:
    """Add a document and its messages. Returns the messages that found their queue full. The caller
    commits."""
    connection.execute(
        "INSERT INTO call_documents (session, ended_unix_ns, document, replica)"
        " VALUES (?, ?, ?, ?)",
        (ended.session, ended.ended_unix_ns, ended.document, ended.replica),
    )
    return [
        each for each in ended.messages if not queue_message(connection, each, ended.ended_unix_ns)
    ]


def queue_message(connection: StoreConnection, message: WebhookMessage, now_ns: int) -> bool:
    """Add a message to the queue of its endpoint, due at once. Returns False where that is full.
    The caller commits. Raises errors of the driver."""
    if num_queued(connection, message.endpoint) >= MAX_QUEUED:
        return False
    connection.execute(
        "INSERT INTO webhook_messages"
        " (endpoint, message_id, body, created_unix_ns, due_unix_ns, num_attempts)"
        " VALUES (?, ?, ?, ?, ?, 0)",
        (message.endpoint, message.message_id, message.body, now_ns, now_ns),
    )
    return True


def read_document(place: Place, session: str) -> str | None:
    """Document of an ended call, as JSON; None where there is none. Blocks. Raises StoreError."""
    with connected(place) as connection:
        found = connection.execute(
            "SELECT document FROM call_documents WHERE session = ? ORDER BY id DESC LIMIT 1",
            (session,),
        ).fetchone()
    return None if found is None else str(found[0])


def read_ended(place: Place, *, max_calls: int, before_row: int) -> list[tuple[int, EndedCall]]:
    """The newest `max_calls` documents that were stored before a row, oldest first, each with its
    row and its messages that wait. Blocks. Raises StoreError."""
    with connected(place) as connection:
        rows = connection.execute(
            "SELECT id, session, ended_unix_ns, document, replica FROM call_documents"
            " WHERE id < ? ORDER BY id DESC LIMIT ?",
            (before_row, max_calls),
        ).fetchall()
        # A message is queued in the nanosecond of its call's end (`insert_ended`), and by the
        # session that stands in its body where two calls have ended in the same one.
        waiting: dict[int, list[WebhookMessage]] = {}
        times = [ended_ns for _, _, ended_ns, *_ in rows] or [0]
        for created_ns, *message in connection.execute(
            "SELECT created_unix_ns, endpoint, message_id, body FROM webhook_messages"
            f" WHERE created_unix_ns IN ({', '.join('?' * len(times))}) ORDER BY id",
            times,
        ):
            waiting.setdefault(created_ns, []).append(WebhookMessage(*message))
    return [
        (
            row,
            EndedCall(
                session,
                ended_ns,
                document,
                tuple(each for each in waiting.get(ended_ns, ()) if session in each.body),
                replica,
            ),
        )
        for row, session, ended_ns, document, replica in reversed(rows)
    ]


def num_queued(connection: StoreConnection, endpoint: str) -> int:
    """Messages that wait for an endpoint."""
    (number,) = connection.execute(
        "SELECT count(*) FROM webhook_messages WHERE endpoint = ?", (endpoint,)
    ).fetchone()
    return int(number)


def claim(
    connection: StoreConnection, endpoint: str, now_ns: int, until_ns: int
) -> ClaimedMessage | None:
    """Take the message of an endpoint that has been due longest, until `until_ns`. None: nothing is
    due, or another server was faster. What is due later than any pause ends was queued before the
    clock was put back, and is due. Raises errors of the driver."""
    found = connection.execute(
        "SELECT id, message_id, body, created_unix_ns, num_attempts, due_unix_ns"
        " FROM webhook_messages WHERE endpoint = ? AND (due_unix_ns <= ? OR due_unix_ns > ?)"
        " ORDER BY due_unix_ns, id LIMIT 1",
        (endpoint, now_ns, now_ns + MAX_AHEAD_NS),
    ).fetchone()
    if found is None:
        return None
    row, message_id, body, created_ns, num_attempts, due_ns = found
    taken = connection.execute(
        "UPDATE webhook_messages SET due_unix_ns = ?, num_attempts = num_attempts + 1"
        " WHERE id = ? AND due_unix_ns = ? RETURNING id",
        (until_ns, row, due_ns),
    ).fetchall()
    return ClaimedMessage(row, message_id, body, created_ns, num_attempts + 1) if taken else None


def postpone(connection: StoreConnection, row: int, due_ns: int) -> None:
    """Try a claimed message again at `due_ns`. Raises errors of the driver."""
    connection.execute("UPDATE webhook_messages SET due_unix_ns = ? WHERE id = ?", (due_ns, row))


def remove(connection: StoreConnection, row: int) -> None:
    """Remove a message that was taken or is given up. Raises errors of the driver."""
    connection.execute("DELETE FROM webhook_messages WHERE id = ?", (row,))
