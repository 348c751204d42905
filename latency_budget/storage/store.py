"""Finished turns and telephone calls in a database, written off the event loop.

Theory of operation
-------------------
`add` puts a turn into a bounded queue and returns. The store's `BackgroundWriter` runs a pass every
WRITE_EVERY_S, which writes what has come in one transaction, so that thousands of turns a minute
cost one write a moment, and none of them the audio. The database is a SQLite file, or PostgreSQL
for all servers of a fleet (`database.py`).

Nothing that is wrong with the database harms a call or ends the thread.

- What can't be written now (a locked file, a full disk, a server that is gone) waits in the queue
  and is tried again.
- Where the queue is full the newest turns are dropped and counted (`lost`).
- A turn that no table can hold is dropped and counted; the others are written.
- A database that takes long is a `problem` from SLOW_S on, while the write still goes on.
- A damaged file is renamed, never deleted, and a new one is created; what waits is written there.
  A file that is damaged again within SET_ASIDE_EVERY_S is left until then: a disk that spoils every
  write must not be filled with copies. Each is logged once and counted (`num_set_aside`).
- Tables of a newer program are left as they are, and nothing is stored: what comes is counted as
  lost, and webhook messages are handed to `on_unstored`, which sends them without the store.

`problem` says what is wrong, `notice` which file was set aside; both stand in the readiness report.

Age is counted along what was stored, not by the clock alone (`retention.py`).
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from latency_budget.account.clock import NS_PER_S, Clock, SystemClock, unix_ns

from .background_writer import BackgroundWriter, BoundedQueue
from .call_documents import (
    DOCUMENT_ROWS,
    MAX_QUEUED_DAYS,
    EndedCall,
    WebhookMessage,
    insert_ended,
)
from .call_records import CallRecord, insert_call
from .database import Place, StoreConnection
from .open_database import database_at
from .retention import NS_PER_DAY, oldest_kept_ns
from .store_schema import MigrationError, NewerStoreError, StoredTurn, insert
from .wall_ages import WallAges

WRITE_EVERY_S: Final = 0.5
"""Pause between two writes: the most that a killed process loses, besides a write under way."""

MAX_WAITING: Final = 10_000
"""Turns, at some 2 kB each."""

MAX_BATCH: Final = 1000
"""Turns of one transaction: some 0.2 s, so that another process waits no longer for the file."""

SLOW_S: Final = 5
"""Length of a pass from which the database counts as slow."""

CHARS_PER_ENTRY: Final = 4096
"""Characters of an ended call's texts that count as one entry of the queue: a long call must not
take the memory of one short turn."""

Entry = StoredTurn | CallRecord | EndedCall
"""What the store writes."""

NS_PER_HOUR: Final = 3600 * NS_PER_S

FORGET_EVERY: Final = 100
"""Most writes between two deletions of turns and calls that are too old or too many."""

FORGET_EVERY_NS: Final = NS_PER_HOUR
"""Longest time between two of them, also where nothing is written: words must not stay because
nobody calls."""

MAX_FORGOTTEN: Final = 20_000
"""Most rows of a table that one transaction deletes: a second or two, so that a limit that was
lowered by much holds up no write for longer."""

_log = logging.getLogger(__name__)


class UnstorableError(Exception):
    """A turn or call that no table can hold."""


class TurnStore:
    """The writer of the turn store; owns the connection and a thread. Public methods and figures
    may be used from any thread."""

    def __init__(
        self,
        place: Place,
        *,
        replica: str = "",
        max_turns: int = 200_000,
        max_days: int = 90,
        on_unstored: Callable[[EndedCall], None] | None = None,
        wall_ns: Callable[[], int] = unix_ns,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is opened before `start`. `replica`: name of this server in its rows. `max_turns`
        limits calls as well, and both limits are those of the database, not of one server's rows.
        `on_unstored`: called on the store's thread with a call whose webhook messages find tables
        of a newer program; without it they are dropped and counted. `wall_ns`: the time in ns since
        1970; `clock`: how long the process has run. Raises ValueError for limits below 1, and
        ModuleNotFoundError for PostgreSQL without its driver."""
        if max_turns < 1 or max_days < 1:
            raise ValueError(f"a store keeps at least one turn and day: {max_turns}, {max_days}")
        self.place: Final = place
        self.replica: Final = replica
        self._database = database_at(place)
        self._max_turns = max_turns
        self._max_age_ns = max_days * NS_PER_DAY
        self._on_unstored = on_unstored
        self._wall_ns = wall_ns
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.now_ns()
        self._wall_ages = WallAges(self._began_ns, wall_ns())
        self._pass_began_ns: int | None = None
        self._num_unstorable = 0
        self._num_refused = 0
        self.num_messages_dropped = 0
        """Webhook messages that found the queue of their endpoint full."""
        self._queue = BoundedQueue[Entry](MAX_WAITING)
        self._connection: StoreConnection | None = None
        self._unsure: tuple[str, int, Sequence[WebhookMessage]] | None = None
        """Number of a transaction whose end is not known, its entries in the queue, and the
        messages that it has dropped."""
        self._num_writes = 0
        self._forgot_ns = self._began_ns
        """Time of the last deletion, or of the beginning, by `clock`."""
        self._writer = BackgroundWriter(
            "latency-store",
            self._pass,
            recovered=f"{place} is written again",
            on_end=self._disconnect,
        )

    @property
    def problem(self) -> str | None:
        """Reason why turns are not stored, as a sentence; None: they are."""
        began_ns = self._pass_began_ns
        if self._writer.problem is None and began_ns is not None:
            lasts_s = (self._clock.now_ns() - began_ns) / NS_PER_S
            if lasts_s >= SLOW_S:
                return f"{self.place} is slow: a write has not ended for {lasts_s:.0f} s"
        return self._writer.problem

    @property
    def notice(self) -> str | None:
        """The damaged file that was set aside, as a sentence, until the operator takes it away."""
        return self._database.notice

    @property
    def num_set_aside(self) -> int:
        """Damaged files that were renamed."""
        return self._database.num_set_aside

    @property
    def lost(self) -> int:
        """Turns that found the queue full or tables of a newer program, or that no table can
        hold."""
        return self._queue.dropped + self._num_unstorable + self._num_refused

    @property
    def waiting(self) -> int:
        """Turns and calls that are not written yet."""
        return len(self._queue)

    @property
    def peak_waiting(self) -> int:
        """The most that ever waited at a time."""
        return int(self._queue.peak)

    def start(self) -> None:
        """Open the database and begin to write. Once."""
        self._writer.start()

    def add(self, stored: Entry) -> None:
        """Queue a turn or a call. Returns at once; a full queue drops and counts it."""
        cost = 1.0
        if isinstance(stored, EndedCall):
            cost += stored.num_chars // CHARS_PER_ENTRY
        self._queue.put(replace(stored, replica=self.replica), cost)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Write what was added before. Returns False where that failed or takes longer. Blocks."""
        self._writer.flush(timeout_s)
        return not self.waiting

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left, and disconnect. Blocks."""
        self._writer.close(timeout_s)

    def _pass(self, is_closing: bool) -> float | None:
        """Write what waits. After an error the turns stay, and `problem` has the reason."""
        self._pass_began_ns = self._clock.now_ns()
        self._wall_ages.look(self._pass_began_ns, self._wall_ns())
        try:
            connection = self._connected()
            self._settle(connection)
            while self._queue:
                self._write(connection, self._queue.oldest(MAX_BATCH))
                self._pass_began_ns = self._clock.now_ns()
            if self._clock.now_ns() - self._forgot_ns >= FORGET_EVERY_NS:
                self._forget(connection)
            self._writer.report(None)
        except NewerStoreError as error:
            self._refuse_waiting()
            self._writer.report(
                f"{self.place}: {error}; it was left as it is, and turns are not kept"
            )
        except (OSError, MemoryError, MigrationError) as error:
            self._tell_of_retry(error)
        except Exception as error:  # whatever a damaged file makes SQLite or its reader do
            if self._database.is_passing(error):
                self._tell_of_retry(error)
            else:
                self._disconnect()
                refusal = self._database.set_aside(error, self._wall_ns())
                if refusal is None:
                    return 0.0  # with a new file, when closing too
                self._writer.report(refusal)
        finally:
            self._pass_began_ns = None
        return None if is_closing else WRITE_EVERY_S

    def _refuse_waiting(self) -> None:
        """Drop what waits, and hand its webhook messages on."""
        self._unsure = None
        for stored in self._queue.oldest(MAX_WAITING):
            if isinstance(stored, EndedCall) and stored.messages:
                if self._on_unstored is None:
                    self._tell_of_dropped(stored.messages)
                else:
                    self._on_unstored(stored)
            self._queue.drop_oldest(1)
            self._num_refused += 1

    def _tell_of_retry(self, error: Exception) -> None:
        self._disconnect()
        reason = self._database.explain(error)
        self._writer.report(f"{self.place} can't be written: {reason}; it is tried again")

    def _settle(self, connection: StoreConnection) -> None:
        """Take from the queue what a transaction wrote whose answer was lost with the connection.
        Raises an error of the driver."""
        if self._unsure is not None:
            number, num_entries, dropped = self._unsure
            if self._database.was_committed(connection, number):
                self._queue.drop_oldest(num_entries)
                self._tell_of_dropped(dropped)
            self._unsure = None

    def _write(self, connection: StoreConnection, batch: Sequence[Entry]) -> None:
        """Write the batch in one transaction; one by one where a table can't hold one of them.
        Raises an error of the driver."""
        dropped: list[WebhookMessage] = []
        try:
            with self._transaction(connection, len(batch), dropped):
                for stored in batch:
                    dropped += self._insert(connection, stored)
        except UnstorableError as error:
            if len(batch) > 1:
                for stored in batch:
                    self._write(connection, [stored])
                return
            self._num_unstorable += 1
            _log.error("a turn or call can't be stored: %s", error)
        self._num_writes += 1
        self._queue.drop_oldest(len(batch))
        self._tell_of_dropped(dropped)
        if (self._num_writes - 1) % FORGET_EVERY == 0:
            self._forget(connection)

    @contextlib.contextmanager
    def _transaction(
        self,
        connection: StoreConnection,
        num_entries: int,
        dropped: Sequence[WebhookMessage] = (),
    ) -> Iterator[None]:
        """Commit at the end; roll back after an error. `dropped`: messages that are counted as
        dropped once it is committed; the body adds to them."""
        connection.execute(self._database.begin)
        try:
            yield
            number = self._database.number_of(connection)
            if number is not None:
                self._unsure = (number, num_entries, dropped)
            connection.execute("COMMIT")
            self._unsure = None
        except BaseException:
            with contextlib.suppress(Exception):
                connection.execute("ROLLBACK")
            raise

    def _tell_of_dropped(self, dropped: Sequence[WebhookMessage]) -> None:
        for message in dropped:
            self.num_messages_dropped += 1
            _log.error(
                "too many messages wait for webhooks.%s: %s was dropped",
                message.endpoint, message.message_id,
            )  # fmt: skip

    def _insert(self, connection: StoreConnection, stored: Entry) -> list[WebhookMessage]:
        """Returns the messages for which the queue of their endpoint has no room. Raises
        UnstorableError, and errors of the driver."""
        try:
            if isinstance(stored, EndedCall):
                return insert_ended(connection, stored)
            if isinstance(stored, CallRecord):
                insert_call(connection, stored)
            else:
                insert(connection, stored)
        except Exception as error:
            if self._database.is_unstorable(error):
                raise UnstorableError(self._database.explain(error)) from None
            raise
        return []

    def _forget(self, connection: StoreConnection) -> None:
        """Delete what is too old or too much, in a transaction of its own: one that takes too long
        must not undo a write."""
        with self._transaction(connection, 0):
            self._delete_old(connection)
        self._forgot_ns = self._clock.now_ns()

    def _delete_old(self, connection: StoreConnection) -> None:
        """Delete what is too old or too much. The freed pages are used again: a file keeps its
        size."""
        if not self._database.may_forget(connection):
            return
        for table, column, max_rows in (
            ("turns", "at_unix_ns", self._max_turns),
            ("calls", "ended_unix_ns", self._max_turns),
            ("call_documents", "ended_unix_ns", max(1, self._max_turns // DOCUMENT_ROWS)),
        ):
            newest = connection.execute(
                f"SELECT max({column}) FROM {table} GROUP BY {column} / ?", (NS_PER_HOUR,)
            )
            oldest_ns = oldest_kept_ns(
                (at_ns for (at_ns,) in newest),
                self._wall_ns(),
                self._max_age_ns,
                running_ns=self._clock.now_ns() - self._began_ns,
            )
            beyond = self._database.newest_forgotten.format(table=table)
            connection.execute(
                f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table}"
                f" WHERE {column} < ? OR id <= ({beyond}) LIMIT ?)",
                (oldest_ns, max_rows, MAX_FORGOTTEN),
            )
        wall_ns = self._wall_ns()
        self._wall_ages.look(self._clock.now_ns(), wall_ns)
        max_age_ns = MAX_QUEUED_DAYS * NS_PER_DAY
        spans = self._wall_ages.younger_than(max_age_ns)
        kept = "".join(" AND NOT created_unix_ns BETWEEN ? AND ?" for _ in spans)
        connection.execute(
            "DELETE FROM webhook_messages WHERE id IN (SELECT id FROM webhook_messages"
            f" WHERE created_unix_ns < ?{kept} LIMIT ?)",
            (wall_ns - max_age_ns, *(each for span in spans for each in span), MAX_FORGOTTEN),
        )
        connection.execute(
            "DELETE FROM sessions"
            " WHERE NOT EXISTS (SELECT 1 FROM turns WHERE turns.session = sessions.id)"
        )

    def _connected(self) -> StoreConnection:
        if self._connection is not None and not self._database.is_current(self._connection):
            self._disconnect()
        if self._connection is None:
            self._connection = self._database.connect()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None
