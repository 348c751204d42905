"""Webhooks: sends the messages about ended calls that wait in the turn store.

Theory of operation
-------------------
The store's thread writes a message in the transaction that writes the call's document
(`latency_budget/storage/call_documents.py`). Each endpoint of the settings has a thread here, with
a connection of its own to that database: it claims the message that has been due longest, sends it,
and removes it once the endpoint has answered 2xx. Nothing of a call waits for any of this, and an
endpoint that hangs delays its own messages only.

- Every other answer and every error is a failed attempt, redirects too, which are not followed. The
  message is tried again after pauses that grow from FIRST_PAUSE_S to MAX_PAUSE_S, until it is older
  than `max_age_h`. It is given up at once where the endpoint answers 410 (Gone).
- A wall clock that is put right while the process runs makes no message older or younger
  (`latency_budget/storage/wall_ages.py`). One of a time ahead of the clock, as where it was put
  back before, is as old as the pauses between its attempts.
- An endpoint may get a message twice: where its answer was lost, or the server was killed before it
  noted it. `webhook-id` is the same then.
- Only the head of an answer is read. An attempt ends after ATTEMPT_S, however slowly bytes come.
- Addresses are checked when a connection is made, and the connection is made to the address that
  was checked: a name server that changes its mind in between gains nothing. No proxy is used.
- At the end of the process messages stay where they are. A claim that was not settled is due again
  after CLAIM_S.
- Messages that the store can't hold, because its tables are those of a newer program (a fleet is
  updated server by server), wait in memory (`_UnstoredMessages`) and are sent from there by the
  same rules. What is left of them at the end of the process is lost, and logged.

The signature is that of Standard Webhooks 1.0 (https://www.standardwebhooks.com): two lines of the
standard library. The package `standardwebhooks` would do the same, and is the tests' judge instead.
"""

import base64
import hmac
import logging
import os
import random
import socket
import sqlite3
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import httpcore
import httpx

from agent.config.webhooks import WebhookSettings, is_public, secret_of
from latency_budget.account.clock import Clock, unix_ns
from latency_budget.storage.background_writer import BackgroundWriter, BoundedQueue
from latency_budget.storage.call_documents import (
    ClaimedMessage,
    EndedCall,
    WebhookMessage,
    claim,
    num_queued,
    postpone,
    queue_message,
    remove,
)
from latency_budget.storage.database import Place, StoreConnection
from latency_budget.storage.open_database import database_at
from latency_budget.storage.store_schema import MigrationError, NewerStoreError, statements_from
from latency_budget.storage.wall_ages import WallAges

LOOK_EVERY_S: Final = 1.0
"""Interval in s between looks for due messages: some 50 us of a SQLite file each."""

ATTEMPT_S: Final = 15.0
"""Time limit of one attempt, from the connection to the head of the answer."""

CLAIM_S: Final = 60
"""Time in s after which a claimed message that was not settled is due again: an attempt, and a
name server that takes its time before it."""

FIRST_PAUSE_S: Final = 5.0
MAX_PAUSE_S: Final = 3600.0
"""Pause in s before the second attempt, and the longest. In between each is four times the one
before: 5 s, 20 s, 80 s, 5 min, 21 min, an hour."""

FAILED_PAUSE_S: Final = 1.0
"""Pause in s after a failed attempt before the next message, so that an endpoint that comes back is
not met by all that waited at once."""

RECONNECT_S: Final = 60
"""Longest use of a connection to the store, in s: a file that was damaged is renamed, and a
connection to it would see no message any more."""

MAX_UNSTORED_CHARS: Final = 16 << 20
"""Characters of the messages of one endpoint that wait in memory: some thousand calls. One more is
dropped and logged."""

MAX_UNSTORED_TRIED: Final = 100
"""Of those, messages that are tried in turn; the others wait behind them. It bounds the copies that
the table has beside the queue."""

MAX_ERROR_CHARS: Final = 200
"""Shown of an error. One about a head that can't be read quotes it, with its 100 kB."""

GONE: Final = 410

_NS: Final = 10**9

_log = logging.getLogger(__name__)


class ForbiddenAddressError(httpcore.ConnectError):
    """The name of the endpoint has no address that it may have."""


def signed_headers(secret: bytes, message_id: str, at_unix_s: int, body: bytes) -> dict[str, str]:
    """Headers of Standard Webhooks for a message."""
    content = f"{message_id}.{at_unix_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, content, "sha256")).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_unix_s),
        "webhook-signature": f"v1,{signature}",
    }


class _DeadlineStream(httpcore.NetworkStream):
    """Connection whose time limits end at a deadline."""

    def __init__(self, stream: httpcore.NetworkStream, left_s: Callable[[], float]) -> None:
        self._stream = stream
        self._left_s = left_s

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for begin in range(0, len(buffer), 1 << 14):
            self._stream.write(buffer[begin : begin + (1 << 14)], self._left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        inner = self._stream.start_tls(ssl_context, server_hostname, self._left_s())
        return _DeadlineStream(inner, self._left_s)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CheckedNetwork(httpcore.NetworkBackend):
    """Connects to public addresses only, unless private ones are allowed; for one attempt."""

    def __init__(
        self,
        clock: Clock,
        *,
        allow_private: bool,
        resolve: Callable[[str, int], Iterable[str]],
    ) -> None:
        self._clock = clock
        self._ends_ns = clock.now_ns() + int(ATTEMPT_S * _NS)
        self._allow_private = allow_private
        self._resolve = resolve
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = list(self._resolve(host, port))
        except (OSError, UnicodeError):
            raise httpcore.ConnectError("its host is not known") from None
        allowed = [each for each in found if self._allow_private or is_public(each)]
        if not allowed:
            raise ForbiddenAddressError("its address is inside the network")
        error: Exception | None = None
        for address in allowed:
            try:
                stream = self._network.connect_tcp(address, port, self._left_s())
                return _DeadlineStream(stream, self._left_s)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
                error = failure
        assert error is not None
        raise error

    def _left_s(self) -> float:
        """Raises TimeoutException once nothing is left."""
        left_s = (self._ends_ns - self._clock.now_ns()) / _NS
        if left_s <= 0:
            raise httpcore.ReadTimeout("timed out")
        return left_s


def addresses_of(host: str, port: int) -> Iterable[str]:
    """IP addresses of a host. Blocks. Raises OSError and UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return dict.fromkeys(str(address[0]) for *_, address in found)


class _UnstoredMessages:
    """Messages of one endpoint that the store can't hold, in memory: a bounded queue, and a table
    like the store's with those that are being tried. `put` is for any thread, the rest for one."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._queue = BoundedQueue[tuple[WebhookMessage, int]](MAX_UNSTORED_CHARS)
        self._table: sqlite3.Connection | None = None

    def __len__(self) -> int:
        return len(self._queue) + self._num_tried()

    def put(self, message: WebhookMessage, created_unix_ns: int) -> bool:
        """Add a message. Returns False where there is no room."""
        return self._queue.put((message, created_unix_ns), len(message.body))

    def table(self) -> StoreConnection | None:
        """Connection to the table with the messages to try; None while there never were any."""
        if self._table is None and self._queue:
            self._table = sqlite3.connect(":memory:", isolation_level=None)
            for statement in statements_from(0):
                self._table.execute(statement)
        if self._table is not None:
            taken = self._queue.oldest(MAX_UNSTORED_TRIED - self._num_tried())
            for message, created_ns in taken:
                queue_message(self._table, message, created_ns)
            self._queue.drop_oldest(len(taken))
        return self._table

    def close(self) -> None:
        """Drop all messages, and log how many were not sent."""
        if num_lost := len(self):
            _log.error(
                "webhooks.%s: %d messages that the store can't hold were not sent",
                self._endpoint, num_lost,
            )  # fmt: skip
        if self._table is not None:
            self._table.close()

    def _num_tried(self) -> int:
        return 0 if self._table is None else num_queued(self._table, self._endpoint)


class _Endpoint:
    """One endpoint with its thread. The figures may be read from any thread."""

    def __init__(
        self,
        name: str,
        settings: WebhookSettings,
        secret: bytes,
        place: Place,
        clock: Clock,
        wall_ns: Callable[[], int],
        resolve: Callable[[str, int], Iterable[str]],
    ) -> None:
        self.num_delivered = 0
        self.num_failures = 0
        """Attempts that failed."""
        self.num_given_up = 0
        self.num_waiting = 0
        """Messages in the queue when it was looked at last."""
        self._name = name
        self._settings = settings
        self._secret = secret
        self._database = database_at(place)
        self._unstored = _UnstoredMessages(name)
        self._store_problem: str | None = None
        self._endpoint_problem: str | None = None
        self._connection: StoreConnection | None = None
        self._connected_ns = 0
        self._clock = clock
        self._wall_ns = wall_ns
        self._ages = WallAges(clock.now_ns(), wall_ns())
        self._resolve = resolve
        self._tls: ssl.SSLContext | None = None
        self.writer: Final = BackgroundWriter(
            f"webhook-{name}",
            self._pass,
            recovered=f"webhooks.{name} takes messages again",
            on_end=self._end,
        )

    def add_unstored(self, message: WebhookMessage, created_unix_ns: int) -> bool:
        """Send a message that the store can't hold. Any thread. Returns False where it is too late,
        or too many wait."""
        if self.writer.is_abandoned or not self._unstored.put(message, created_unix_ns):
            return False
        self.writer.wake()
        return True

    def _pass(self, is_closing: bool) -> float | None:
        """Send what is due, until an attempt fails. Returns the pause before the next pass."""
        self._ages.look(self._clock.now_ns(), self._wall_ns())
        num_unstored = len(self._unstored)
        try:
            num_stored, pause_s = self._send_due(self._connected(), num_unstored, is_closing)
            self._store_problem = None
        except Exception as error:
            is_refused = isinstance(error, NewerStoreError | MigrationError)
            if not (is_refused or self._database.is_from_driver(error)):
                raise
            self._disconnect()
            reason = self._database.explain(error)
            self._store_problem = f"webhooks.{self._name}: its queue can't be read: {reason}"
            num_stored, pause_s = 0, LOOK_EVERY_S
        table = self._unstored.table()
        if table is not None:
            _, unstored_pause_s = self._send_due(table, num_stored, is_closing)
            pause_s = max(pause_s, unstored_pause_s)
        self.num_waiting = num_stored + len(self._unstored)
        if not self.num_waiting:
            self._endpoint_problem = None
        self._report()
        return None if is_closing else pause_s

    def _send_due(
        self, connection: StoreConnection, num_elsewhere: int, is_closing: bool
    ) -> tuple[int, float]:
        """Send what is due of one queue, until an attempt fails. Returns what waits there, and the
        pause before the next pass. `num_elsewhere`: messages that wait in the other queue. Raises
        errors of the driver."""
        pause_s = LOOK_EVERY_S
        while not (is_closing or self.writer.is_abandoned):
            now_ns = self._wall_ns()
            message = claim(connection, self._name, now_ns, now_ns + CLAIM_S * _NS)
            if message is None:
                break
            if not self._deliver(connection, message):
                pause_s = FAILED_PAUSE_S
                break
        num_waiting = num_queued(connection, self._name)
        self.num_waiting = num_waiting + num_elsewhere
        return num_waiting, pause_s

    def _deliver(self, connection: StoreConnection, message: ClaimedMessage) -> bool:
        """Make one attempt and settle the message. False: it failed."""
        problem, is_final = self._attempt(message)
        if problem is None:
            remove(connection, message.row)
            self._endpoint_problem = None
            self._report()
            self.num_delivered += 1
            return True
        self._endpoint_problem = f"webhooks.{self._name}: the endpoint {problem}"
        self._report()
        self.num_failures += 1
        now_ns = self._wall_ns()
        self._ages.look(self._clock.now_ns(), now_ns)
        age_ns = self._ages.age_ns(message.created_unix_ns)
        age_h = (paused_ns(message.num_attempts) if age_ns is None else age_ns) / (3600 * _NS)
        if is_final or age_h >= self._settings.max_age_h:
            remove(connection, message.row)
            self.num_given_up += 1
            _log.error(
                "webhooks.%s: %s was given up after %d attempts in %.1f h: the endpoint %s",
                self._name, message.message_id, message.num_attempts, age_h, problem,
            )  # fmt: skip
        else:
            pause_s = pause_before(message.num_attempts + 1) * random.uniform(1, 1.2)
            postpone(connection, message.row, now_ns + int(pause_s * _NS))
        return False

    def _report(self) -> None:
        self.writer.report(self._store_problem or self._endpoint_problem)

    def _attempt(self, message: ClaimedMessage) -> tuple[str | None, bool]:
        """Send a message. Returns what is wrong, as the predicate of a sentence, and whether it
        would be again."""
        body = message.body.encode()
        headers = {
            "content-type": "application/json",
            "user-agent": "halfsec",
            **signed_headers(self._secret, message.message_id, self._wall_ns() // _NS, body),
        }
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        network = _CheckedNetwork(
            self._clock, allow_private=self._settings.allow_private, resolve=self._resolve
        )
        try:
            with (
                httpcore.ConnectionPool(
                    ssl_context=self._tls, network_backend=network, max_keepalive_connections=0
                ) as pool,
                pool.stream(
                    "POST", self._settings.url, headers=list(headers.items()), content=body
                ) as response,
            ):
                status = response.status
        except httpcore.TimeoutException:
            return f"did not answer within {ATTEMPT_S:.0f} s", False
        except ForbiddenAddressError:
            return "has an address inside the network, which allow_private is off for", False
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            why = str(error)[:MAX_ERROR_CHARS] or type(error).__name__
            return f"can't be reached: {why}", False
        if 200 <= status < 300:
            return None, False
        return f"answered {status}", status == GONE

    def _connected(self) -> StoreConnection:
        now_ns, connection = self._clock.now_ns(), self._connection
        if connection is not None and (
            not self._database.is_current(connection)
            or now_ns - self._connected_ns >= RECONNECT_S * _NS
        ):
            self._disconnect()
        if self._connection is None:
            self._connection = self._database.connect()
            self._connected_ns = now_ns
        return self._connection

    def _end(self) -> None:
        self._disconnect()
        self._unstored.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            try:
                self._connection.close()
            except Exception as error:
                _log.debug("webhooks.%s: %s", self._name, self._database.explain(error))
            self._connection = None


def pause_before(attempt: int) -> float:
    """Pause in s before an attempt, from the second on."""
    return float(min(MAX_PAUSE_S, FIRST_PAUSE_S * 4 ** min(attempt - 2, 10)))


def paused_ns(num_attempts: int) -> int:
    """Pauses between so many attempts, in ns."""
    return int(sum(pause_before(each) for each in range(2, num_attempts + 1)) * _NS)


class CallWebhooks:
    """Senders of all endpoints. Methods and figures may be used from any thread."""

    def __init__(
        self,
        webhooks: Mapping[str, WebhookSettings],
        place: Place,
        clock: Clock,
        *,
        wall_ns: Callable[[], int] = unix_ns,
        resolve: Callable[[str, int], Iterable[str]] = addresses_of,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Nothing is sent before `start`. `place`: of the turn store. `resolve`: addresses of a
        host and port. Raises ValueError for a secret that is missing or invalid."""
        self.endpoints: Final = {
            name: _Endpoint(
                name,
                settings,
                secret_of(settings.secret_env, environment),
                place,
                clock,
                wall_ns,
                resolve,
            )
            for name, settings in webhooks.items()
        }

    @property
    def problem(self) -> dict[str, str]:
        """Reason why an endpoint gets no messages, as a sentence, by its name; empty: all do."""
        problems = {name: each.writer.problem for name, each in self.endpoints.items()}
        return {name: problem for name, problem in problems.items() if problem is not None}

    def start(self) -> None:
        """Begin to send. Once."""
        for each in self.endpoints.values():
            each.writer.start()

    def send_unstored(self, ended: EndedCall) -> None:
        """Send the messages of a call that the store can't hold, from memory. Returns at once."""
        for message in ended.messages:
            endpoint = self.endpoints.get(message.endpoint)
            if endpoint is None or not endpoint.add_unstored(message, ended.ended_unix_ns):
                _log.error(
                    "webhooks.%s: %s was dropped: the store can't hold it, nor the memory",
                    message.endpoint, message.message_id,
                )  # fmt: skip

    def wake(self) -> None:
        """Look for due messages now."""
        for each in self.endpoints.values():
            each.writer.wake()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop sending; messages stay in the store. An attempt in progress is left behind after the
        time limit, and repeated by the next process. Blocks."""
        for each in self.endpoints.values():
            each.writer.close(0)
        for each in self.endpoints.values():
            each.writer.close(timeout_s / len(self.endpoints))
