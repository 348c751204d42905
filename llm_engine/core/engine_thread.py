"""The engine's thread, and the channels between it and event loops.

The thread alone touches the core and the backend. Event loops post commands to its queue and read
streams; what the thread sends back travels by `call_soon_threadsafe`, so no loop ever waits on a
lock for longer than it takes to append to a list.

Bounds: at most `MAX_COMMANDS` commands wait, further ones are refused with EngineError (aborting
and closing are always accepted; there is at most one of each per request). A stream holds at most
the request's `max_tokens` outputs, so a reader that falls behind costs memory, not the engine.

Nothing that is raised ends the thread, and every request whose work raised gets an EngineError.
Each `except` is of BaseException: a library that calls `sys.exit` raises SystemExit, and a panic of
Rust's (tokenizer, grammar) is no Exception either. KeyboardInterrupt goes to the main thread only.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from llm_engine.errors import DeviceLostError, EngineError, RequestError

from .engine_core import EngineCore
from .output import FinishReason
from .request import Output, Request, RequestId

_log = logging.getLogger(__name__)

MAX_COMMANDS: Final = 1024
"""Commands that may wait for the thread. A step takes at most about 0.2 s on a CPU; more commands
than this in that time are an attack."""

CHECK_AFTER_S: Final = 1.0
"""Idle time after which the thread runs the cache's integrity check, which takes a millisecond."""

_OWN_NAME: Final = Path("/proc/thread-self/comm")
"""Native name of the thread that reads or writes it, on Linux."""

Result = TypeVar("Result")
Payload = TypeVar("Payload")


def call_on_loop(
    loop: asyncio.AbstractEventLoop, callback: Callable[[Payload], None], payload: Payload
) -> bool:
    """Call back on a loop from another thread. False when the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, payload)
    except RuntimeError:  # raised by a closed loop
        return False
    return True


def _native_name() -> str:
    """Native name of the calling thread; empty where there is none."""
    try:
        return _OWN_NAME.read_text().strip()
    except OSError:
        return ""


class OutputStream:
    """Queue of one request's outputs to the event loop that asked. Belongs to that loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[Output | Exception] = asyncio.Queue()
        self._cut = False
        self.request_id: RequestId | None = None
        """Set and read by the engine's thread only."""
        self.played_until_ns: int | None = None
        """Time at which the speech made of the reply so far will have been heard, monotonic ns. Set
        by the loop, read by the engine's thread before each step: it takes no lock and wakes no
        thread."""

    async def next(self) -> Output:
        """Wait for the next output. Raises RequestError or EngineError when the request failed."""
        output = await self._outputs.get()
        if isinstance(output, Exception):
            raise output
        if output.error is not None:
            raise output.error
        return output

    def cut(self) -> None:
        """Drop unread outputs; the next one is `cancelled`."""
        if self._cut:
            return
        self._cut = True
        while not self._outputs.empty():
            self._outputs.get_nowait()
        self._outputs.put_nowait(
            Output(self.request_id or RequestId(0), finish_reason=FinishReason.CANCELLED)
        )

    def send(self, output: Output | Exception) -> bool:
        """Queue an output; called on the engine's thread. False when the loop is closed."""
        return call_on_loop(self._loop, self._receive, output)

    def _receive(self, output: Output | Exception) -> None:
        if not self._cut:
            self._outputs.put_nowait(output)


@dataclass(frozen=True, slots=True)
class _Command:
    """Work for the engine's thread between two steps."""

    run: Callable[[], None]
    fail: Callable[[EngineError], object]
    """Called instead of `run`, on any thread, when the engine is lost."""


def _ignore(error: EngineError) -> None:
    """Failure callback of clean-up, whose result no caller waits for."""


@dataclass(slots=True)
class Health:
    """State of the engine's device. Any thread may read it."""

    lost: DeviceLostError | None = None
    """Set once the device is lost; nothing can be computed in this process any more."""


class EngineThread:
    """Runs an `EngineCore` on a thread of its own until closed."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._streams: dict[RequestId, OutputStream] = {}
        self._commands: list[_Command] = []
        self.health = Health()
        self._changed = threading.Condition()
        self._closing = False
        self._native_name = _native_name()
        self.thread = threading.Thread(target=self._run, name="llm_engine", daemon=True)
        self.thread.start()

    def submit(self, request: Request) -> OutputStream:
        """Start a request. Call on a running loop; raises EngineError when the engine is closed."""
        stream = OutputStream()

        def start() -> None:
            try:
                stream.request_id = self._core.add(request)
            except RequestError as error:
                stream.send(error)
            except BaseException as error:
                _log.exception("a request could not be started")
                stream.send(_as_engine_error(error))
            else:
                self._streams[stream.request_id] = stream

        self._post(start, stream.send)
        return stream

    def abort(self, stream: OutputStream) -> None:
        """Stop a request within one step, background work at once. Any thread; does nothing when
        it is over."""

        def stop() -> None:
            if self._streams.pop(stream.request_id or RequestId(0), None) is not None:
                assert stream.request_id is not None
                self._core.abort(stream.request_id)

        self._post(stop, always=True)

    async def call(
        self, function: Callable[[], Result], *, undo: Callable[[Result], None]
    ) -> Result:
        """Run a function on the engine's thread between two steps and return its result.

        `undo` runs there with the result if the caller was cancelled or its loop is closed. What
        the function raises is raised here; EngineError in place of what is no Exception.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        def succeed(result: Result) -> None:
            if future.done():
                self.post(lambda: undo(result))
            else:
                future.set_result(result)

        def run() -> None:
            try:
                result = function()
            except BaseException as error:
                call_on_loop(loop, fail, _for_future(error))
            else:
                if not call_on_loop(loop, succeed, result):
                    undo(result)

        self._post(run, lambda error: call_on_loop(loop, fail, error))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                # The result was set already when the caller was cancelled.
                result = future.result()
                self.post(lambda: undo(result))
            raise

    def post(self, function: Callable[[], None]) -> None:
        """Run a function on the engine's thread without waiting. For clean-up: always accepted."""
        self._post(function, always=True)

    def lose(self, error: DeviceLostError) -> None:
        """Fail all requests because the device is lost. Any thread; the engine's own may be blocked
        in the device for ever."""
        with self._changed:
            if self.health.lost is not None:
                return
            self.health.lost = error
            commands, self._commands = self._commands, []
        for command in commands:
            command.fail(error)
        for stream in self._streams.copy().values():
            stream.send(error)

    def stop(self) -> None:
        """Refuse further commands, and fail all requests after the current step."""
        with self._changed:
            self._closing = True
            self._core.interruption.set()
            self._changed.notify()

    def close(self) -> None:
        """Stop and wait for the thread. Must not be called on the engine's thread."""
        self.stop()
        self.thread.join()

    def _post(
        self,
        run: Callable[[], None],
        fail: Callable[[EngineError], object] = _ignore,
        *,
        always: bool = False,
    ) -> None:
        with self._changed:
            if self._closing:
                if always:
                    return
                raise EngineError("the engine is closed")
            if self.health.lost is not None and not always:
                raise DeviceLostError(str(self.health.lost))
            if len(self._commands) >= MAX_COMMANDS and not always:
                raise EngineError("the engine is overloaded; try again later")
            self._commands.append(_Command(run, fail))
            # Background work runs where there is nothing else: no command waits for its step.
            self._core.interruption.set()
            self._changed.notify()

    def _run(self) -> None:
        # Inherited where Python does not set it (before 3.14): the name by which its supervisor
        # knows a model's threads, those of the backend among them.
        with contextlib.suppress(OSError):
            _OWN_NAME.write_text(self._native_name)
        is_checked = True
        while True:
            with self._changed:
                while not (self._commands or self._closing or self._core.has_work):
                    if not self._changed.wait(None if is_checked else CHECK_AFTER_S):
                        break
                commands, self._commands = self._commands, []
                self._core.interruption.clear()
                closing = self._closing
            if not (commands or closing or self._core.has_work):
                self._check()
                is_checked = True
                continue
            is_checked = False
            for command in commands:
                try:
                    command.run()
                except BaseException:
                    # Only clean-up gets here; no caller waits for its result.
                    _log.exception("the engine could not clean up after a request")
            if closing:
                self._fail_all(EngineError("the engine is closed"))
                # An engine is part of cycles of references. Where it was abandoned because it hung,
                # the memory of its model must not wait for the garbage collector.
                self._core.release()
                return
            try:
                self._step()
            except BaseException as error:
                _log.exception("the engine's step failed")
                self._fail_all(_as_engine_error(error))

    def _step(self) -> None:
        for request_id, stream in self._streams.items():
            if stream.played_until_ns is not None:
                self._core.played_until(request_id, stream.played_until_ns)
        for output in self._core.step():
            self._deliver(output)

    def _check(self) -> None:
        """Check, while idle, that every page is accounted for. Otherwise forget the whole cache:
        better than to serve wrong keys."""
        try:
            self._core.cache.check()
        except BaseException:
            _log.exception(
                "the cache's integrity check failed; all conversations are computed anew"
            )
            try:
                self._core.cache.forget_everything()
            except BaseException:
                _log.exception("the cache could not be forgotten")

    def _deliver(self, output: Output) -> None:
        if isinstance(output.error, DeviceLostError):
            self.health.lost = output.error
        is_last = output.is_last
        take = self._streams.pop if is_last else self._streams.get
        stream = take(output.request_id, None)
        if stream is not None and not stream.send(output) and not is_last:
            del self._streams[output.request_id]
            self._core.abort(output.request_id)

    def _fail_all(self, error: EngineError) -> None:
        failed, self._streams = self._streams, {}
        for request_id, stream in failed.items():
            stream.send(error)
            try:
                self._core.abort(request_id)
            except BaseException:
                _log.exception("the engine could not clean up after a request")


def _for_future(error: BaseException) -> Exception:
    """The error itself where a future may have it: StopIteration it refuses, and what is no
    Exception would go through the event loop and end the service."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return _as_engine_error(error)


def _as_engine_error(error: BaseException) -> EngineError:
    failure = EngineError(f"the engine failed: {str(error) or type(error).__name__}")
    failure.__cause__ = error
    return failure
