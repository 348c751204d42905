"""The real service in a thread: real models, a real port."""

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import llm_engine
from agent.calls.registry import CallRegistry
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.server.app import create_app
from agent.server.event_loop import loop_factory
from agent.server.server import Server, listen, make_server
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.model_thread import BACKGROUND
from agent.stages.registry import Stages
from agent.telephony.audiosocket_listener import AudioSockets
from agent.tools.server_tools import ServerTools
from agent.webrtc.endpoint import WebRtcCalls
from latency_budget.account.clock import SystemClock

START_S: Final = 240.0
"""Until the models are loaded: five seconds on two idle cores."""
SETTLE_S: Final = 120.0
"""Until what a call held is released: some milliseconds after its end."""
LAST_RECORDS: Final = 80
"""Number of log lines shown of a call in which a test failed."""
LOOK_S: Final = 0.05
"""Between looks at whether a call waits for a client that won't come back, and at what is left."""
NUM_LOOKS: Final = 600

Result = TypeVar("Result")


@dataclass(eq=False)  # of two that are equal a logger would take only one
class Problems(logging.Handler):
    """Errors that the service logged."""

    records: list[logging.LogRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


class LiveServer:
    """The service as `halfsec serve` runs it, but for the signals."""

    def __init__(self, config: Config, keys: KeyFile, *, tls: ssl.SSLContext | None = None) -> None:
        self.config = config
        self.keys = keys
        self._tls = tls
        self.problems = Problems()
        self.expected: list[str] = []
        """Beginnings of messages that a test may leave in the log."""
        clock = SystemClock()
        self.stages = Stages(config, ModelStore(), clock)
        self._clock = clock
        self._listener = listen("127.0.0.1", 0)
        self.port: int = self._listener.getsockname()[1]
        self._audio_listener = listen("127.0.0.1", 0)
        self.audio_port: int = self._audio_listener.getsockname()[1]
        """Port of AudioSocket."""
        secure = "" if tls is None else "s"
        self.http = f"http{secure}://127.0.0.1:{self.port}"
        self.url = f"ws{secure}://127.0.0.1:{self.port}/v1/realtime"
        self.calls: CallRegistry
        self.audio_sockets: AudioSockets
        self.webrtc: WebRtcCalls
        self.access: Authenticator
        self._server: Server
        self._loop: asyncio.AbstractEventLoop
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-server")

    def start(self) -> None:
        logging.getLogger().addHandler(self.problems)
        self._thread.start()
        assert self._started.wait(START_S), "the service did not start"
        assert self.stages.status == "ready", self.stages.failure()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(SETTLE_S)
        logging.getLogger().removeHandler(self.problems)
        assert not self._thread.is_alive()

    def ask(self, question: Callable[[], Awaitable[Result]]) -> Result:
        """Run something on the service's loop, from any other thread."""

        async def answer() -> Result:
            return await question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(SETTLE_S)

    def engine_stats(self) -> llm_engine.EngineStats:
        async def stats() -> llm_engine.EngineStats:
            engine = await self.stages.llm.call(lambda engine: engine, timeout_s=SETTLE_S)
            return await engine.stats()

        return self.ask(stats)

    def num_sequences(self) -> int:
        """Sequences that the language model holds for open calls; none where it is elsewhere."""
        if self.stages.remote_llm is not None:
            return 0

        async def num_idle() -> int:
            engine = await self.stages.llm.call(lambda engine: engine, timeout_s=SETTLE_S)
            return len(
                engine._conversations._idle
            )  # kept for the next request of a stateless client

        return self.engine_stats().num_sequences - self.ask(num_idle)

    def num_connections(self) -> int:
        """Sockets of clients that the server holds, idle ones among them."""
        return len(self._server.server_state.connections)

    def story(self) -> str:
        """Last events of the newest call, and the state of its stages: for a test that failed."""
        traces = list(self.calls.traces._traces.values())
        lines = [*traces[-1].lines()] if traces else []
        lines = [line for line in lines if "SilenceGrew" not in line][-LAST_RECORDS:]
        stages = [
            f"{name}: {stage.waiting} waiting, {stage.restarts} restarts, broken: {stage.broken}"
            for name, stage in self.stages.threads().items()
        ]
        return "\n".join([*map(str.rstrip, lines), *stages])

    def settle(self) -> None:
        """Wait until all calls are over and hold nothing."""

        async def over() -> None:
            async with asyncio.timeout(SETTLE_S):
                while len(self.calls):
                    self.calls.waiting.end_all("the test is over")
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):  # others may lose their client now
                            await self.calls.wait_empty()
            for (
                stage
            ) in self.stages.threads().values():  # work that was begun for a call that is over
                await stage.call(lambda _: None, timeout_s=SETTLE_S, priority=BACKGROUND)

        self.ask(over)
        # A conversation whose opening nobody waited for is taken back by tasks of its own.
        left = self.num_sequences()
        for _ in range(NUM_LOOKS):
            if not left:
                break
            self.ask(lambda: asyncio.sleep(LOOK_S))
            left = self.num_sequences()
        assert left == 0, left

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve())
        self._listener.close()
        self._audio_listener.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.access = Authenticator(self.config, self.keys, self._clock)
        tools = ServerTools(self.config, self._clock)
        app = create_app(self.config, self.stages, self._clock, access=self.access, tools=tools)
        self.calls = app.calls
        self.audio_sockets = app.audio_sockets
        self.webrtc = app.webrtc
        self._server = make_server(app.asgi, self.config, self._tls)
        async with tools.running(), asyncio.TaskGroup() as group:
            serving = group.create_task(self._server.serve(sockets=[self._listener]))
            beside = [
                group.create_task(self.audio_sockets.serve(self._audio_listener)),
                group.create_task(self.stages.watch()),
                group.create_task(app.webrtc.run()),
            ]
            await self.stages.start()
            self._started.set()
            await serving
            for task in beside:
                task.cancel()
        await self.stages.close()
