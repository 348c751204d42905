"""The engine's thread, and the way between it and event loops.

The thread alone touches the core and the backend. Event loops post commands to its inbox and read
streams; what the thread sends back travels by `call_soon_threadsafe`, so no loop ever waits on a
lock for longer than it takes to append to a list.

Bounds: at most `MAX_COMMANDS` commands wait, further ones are refused with EngineError (aborting
and closing are always accepted; there is at most one of each per request). A stream holds at most
the request's `max_tokens` outputs, so a reader that falls behind costs memory, not the engine.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from llm_engine.errors import DeviceLostError, EngineError, RequestError

from .engine_core import EngineCore
from .output import FinishReason
from .request import Output, Request, RequestId

_log = logging.getLogger(__name__)

MAX_COMMANDS: Final = 1024
"""A step takes at most about 0.2 s on a CPU; more commands than this in that time is an attack."""

CHECK_AFTER_S: Final = 1.0
"""Nothing to do for this long: time to check the books, which takes a millisecond."""

Result = TypeVar("Result")
Payload = TypeVar("Payload")


def tell(
    loop: asyncio.AbstractEventLoop, callback: Callable[[Payload], None], payload: Payload
) -> bool:
    """Call back on a loop from another thread. False when the loop is gone."""
    try:
        loop.call_soon_threadsafe(callback, payload)
    except RuntimeError:  # raised by a closed loop
        return False
    return True


class OutputStream:
    """Outputs of one request on their way to the loop that asked. Belongs to that loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[Output | Exception] = asyncio.Queue()
        self._cut = False
        self.request_id: RequestId | None = None
        """Set and read by the engine's thread only."""
        self.played_until_ns: int | None = None
        """When the speech made of the reply so far will have been heard, monotonic. Set by the
        loop, read by the engine's thread before each step: so it takes no lock and wakes nobody."""

    async def next(self) -> Output:
        """The next output. Raises RequestError or EngineError when the request came to nothing."""
        output = await self._outputs.get()
        if isinstance(output, Exception):
            raise output
        if output.error is not None:
            raise output.error
        return output

    def cut(self) -> None:
        """Drop what has not been read; the next output says `cancelled`."""
        if self._cut:
            return
        self._cut = True
        while not self._outputs.empty():
            self._outputs.get_nowait()
        self._outputs.put_nowait(
            Output(self.request_id or RequestId(0), finish_reason=FinishReason.CANCELLED)
        )

    def send(self, output: Output | Exception) -> bool:
        """From the engine's thread. False when the loop is gone."""
        return tell(self._loop, self._receive, output)

    def _receive(self, output: Output | Exception) -> None:
        if not self._cut:
            self._outputs.put_nowait(output)


@dataclass(frozen=True, slots=True)
class _Command:
    """What the engine's thread is to do between two steps."""

    run: Callable[[], None]
    fail: Callable[[EngineError], object]
    """From any thread, instead: it will not be done."""


def _nobody(error: EngineError) -> None:
    """Of clean-up: nobody waits for it."""


@dataclass(slots=True)
class Health:
    """Any thread may look."""

    lost: DeviceLostError | None = None
    """Why nothing can be calculated any more, in this process."""


class EngineThread:
    """Runs a core on a thread of its own until closed."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._streams: dict[RequestId, OutputStream] = {}
        self._commands: list[_Command] = []
        self.health = Health()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="llm_engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> OutputStream:
        """Start a request. Call on a running loop; raises EngineError when the engine is closed."""
        stream = OutputStream()

        def start() -> None:
            try:
                stream.request_id = self._core.add(request)
            except RequestError as error:
                stream.send(error)
            except Exception as error:
                _log.exception("a request could not be started")
                stream.send(EngineError(f"the engine failed: {error}"))
            else:
                self._streams[stream.request_id] = stream

        self._post(start, stream.send)
        return stream

    def abort(self, stream: OutputStream) -> None:
        """Stop a request within one step. Any thread; does nothing when it is over."""

        def stop() -> None:
            if self._streams.pop(stream.request_id or RequestId(0), None) is not None:
                assert stream.request_id is not None
                self._core.abort(stream.request_id)

        self._post(stop, always=True)

    async def call(
        self, function: Callable[[], Result], *, undo: Callable[[Result], None]
    ) -> Result:
        """Run something on the engine's thread between two steps.

        `undo` runs there with the result if nobody is left to take it.
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
            except Exception as error:
                tell(loop, fail, error)
            else:
                if not tell(loop, succeed, result):
                    undo(result)

        self._post(run, lambda error: tell(loop, fail, error))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                # The result was there already when the asker was told to stop.
                result = future.result()
                self.post(lambda: undo(result))
            raise

    def post(self, function: Callable[[], None]) -> None:
        """Run something on the engine's thread without waiting. For clean-up: always accepted."""
        self._post(function, always=True)

    def lose(self, error: DeviceLostError) -> None:
        """Fail all that is under way: what calculates is gone. Any thread; the engine's own may be
        waiting for it, and never come back."""
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
        """Take on nothing more, and after the current step fail what is under way."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self) -> None:
        """Stop, and wait until it is done. Not from the engine's own thread."""
        self.stop()
        self._thread.join()

    def _post(
        self,
        run: Callable[[], None],
        fail: Callable[[EngineError], object] = _nobody,
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
            self._changed.notify()

    def _run(self) -> None:
        is_checked = True
        while True:
            with self._changed:
                while not (self._commands or self._closing or self._core.has_work):
                    if not self._changed.wait(None if is_checked else CHECK_AFTER_S):
                        break
                commands, self._commands = self._commands, []
                closing = self._closing
            if not (commands or closing or self._core.has_work):
                self._check()
                is_checked = True
                continue
            is_checked = False
            for command in commands:
                try:
                    command.run()
                except Exception:
                    # Only clean-up gets here, and there is nobody left to tell.
                    _log.exception("the engine could not clean up after a request")
            if closing:
                self._fail_all(EngineError("the engine is closed"))
                return
            try:
                self._step()
            except Exception as error:
                _log.exception("the engine's step failed")
                self._fail_all(EngineError(f"the engine failed: {error}"))

    def _step(self) -> None:
        for request_id, stream in self._streams.items():
            if stream.played_until_ns is not None:
                self._core.played_until(request_id, stream.played_until_ns)
        for output in self._core.step():
            self._deliver(output)

    def _check(self) -> None:
        """Idle: are all pages accounted for? If not, better forget everything than serve it."""
        try:
            self._core.cache.check()
        except AssertionError:
            _log.exception("the cache's books do not balance; conversations are computed anew")
            self._core.cache.forget_everything()

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
        for request_id, stream in self._streams.items():
            self._core.abort(request_id)
            stream.send(error)
        self._streams.clear()
