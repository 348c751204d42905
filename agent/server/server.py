"""Server process: one port for the voice socket, HTTP and pages; start, drain and shutdown.

The server listens before the stages are warm: `/readyz` reports their progress, and early sockets
are refused with a time to retry after. On SIGTERM it refuses new calls and lets current calls end;
those that outlast the drain are ended by the server, so that their records say so.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp

from agent.calls.registry import CallRegistry
from agent.codec.json_frame import MAX_FRAME_BYTES
from agent.config.local_urls import page_url
from agent.config.schema import Config
from agent.config.telephony import TelephonySettings
from agent.errors import ConfigError
from agent.http.auth.local_key import forget_local_key, make_local_key
from agent.http.hardening.header_limits import MAX_HEAD_BYTES
from agent.http.hardening.http_protocol import SPARE_CONNECTIONS, connection_types
from agent.observability.server_log import SELDOM, log_to_stderr
from agent.server.startup_checks.port import explain
from agent.stages.heap import freeze_heap
from agent.stages.model_thread import THREAD_PREFIX
from agent.stages.registry import Stages
from latency_budget.account.clock import Clock, SystemClock

from .event_loop import loop_factory
from .reloader import Reloader
from .service import drain, make_service, verify_state_store

LEFT_BEHIND: Final = (THREAD_PREFIX, "halfsec-")
"""Name prefixes of threads that may still run native code at shutdown, or wait for a carrier's REST
API: those of the stages, of an engine on several GPUs, of a plug-in that loads and of Twilio."""

LOOK_EVERY_S: Final = 0.5
"""Interval in seconds between checks for a model that is lost in this process."""

_log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """uvicorn server without its own signal handling: `_drain_when` drains instead."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def make_server(app: ASGIApp, settings: Config, tls: ssl.SSLContext | None = None) -> Server:
    """Build the HTTP and WebSocket server of the app, with the service's limits. Raises
    ConfigError."""
    logging.getLogger("uvicorn.error").addFilter(SELDOM)
    http, voice = connection_types(settings.access)
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="off",
        http=cast(type[asyncio.Protocol], http),
        ws=cast(type[asyncio.Protocol], voice),
        proxy_headers=bool(settings.access.trusted_proxies),
        forwarded_allow_ips=list(settings.access.trusted_proxies),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=settings.agent.max_sessions + SPARE_CONNECTIONS,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    config.load()
    config.ssl = tls  # files and versions are checked where the context is made
    return Server(config)


def serve(
    config: Config,
    tls: ssl.SSLContext | None = None,
    read: Callable[[], Config] | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT or a failure. Returns the exit status of the process. `read`:
    reads the settings anew, for a reload.

    Raises ConfigError where the server can't listen.
    """
    log_to_stderr(config.agent.log_level)
    clock = SystemClock()
    started_ns = clock.now_ns()
    listener = listen(config.agent.host, config.agent.port)
    runner = asyncio.Runner(loop_factory=loop_factory())
    with runner, contextlib.closing(listener), audio_listener(config.telephony) as audio:
        status = runner.run(_serve(config, clock, listener, audio, started_ns, tls, read))
    if any(thread.name.startswith(LEFT_BEHIND) for thread in threading.enumerate()):
        # The thread hangs, or still loads a large model. Native libraries abort the process when
        # the interpreter ends under their threads; everything is saved by now.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def listen(host: str, port: int, setting: str = "agent.port") -> socket.socket:
    """Open a listening socket. `setting`: the key that sets the port. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without the protocol, Python's own loop (not uvloop) leaves Nagle's algorithm on, which holds
    # a small write back until the one before it is acknowledged: up to 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(explain(host, port, error, setting), key=setting) from None
    return listener


@contextlib.contextmanager
def audio_listener(settings: TelephonySettings) -> Iterator[socket.socket | None]:
    """Listening socket of AudioSocket; None where it is not configured. Raises ConfigError."""
    if not settings.audiosocket_port:
        yield None
        return
    host, port = settings.audiosocket_host, settings.audiosocket_port
    with listen(host, port, "telephony.audiosocket_port") as listener:
        allowed = ", ".join(settings.audiosocket_allow)
        print(f"AudioSocket is taken at {host}:{port}, from {allowed}.", flush=True)
        yield listener


async def _serve(
    config: Config,
    clock: Clock,
    listener: socket.socket,
    audio: socket.socket | None,
    started_ns: int,
    tls: ssl.SSLContext | None,
    read: Callable[[], Config] | None,
) -> int:
    port = listener.getsockname()[1]
    service = make_service(
        config,
        clock,
        replica=f"{socket.gethostname()}:{port}",
        local_key=make_local_key(port),
        read=read,
    )
    try:
        await verify_state_store(service.state_store)
    except ConfigError:
        forget_local_key(port)
        await service.close()
        raise
    stages, calls, app = service.stages, service.calls, service.app
    server = make_server(app.asgi, config, tls)
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    handle_signals(loop, stop, reload, calls)
    page = page_url(config, listener.getsockname()[0], port)
    print(f"halfsec listens on {page} and warms up ...", flush=True)
    async with service.tools.running(), asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        warming = group.create_task(stages.start())
        draining = group.create_task(_drain_when(stop, calls, server, config.agent.drain_s))
        beside = [group.create_task(service.run())]
        beside.append(group.create_task(_reload_when(reload, app.reloader)))
        if audio is not None:
            beside.append(group.create_task(app.audio_sockets.serve(audio)))
        await asyncio.wait({serving, warming}, return_when=asyncio.FIRST_COMPLETED)
        warm_s = (clock.now_ns() - started_ns) / 1e9
        if not warming.done():  # stopped while warming: the models are not needed any more
            warming.cancel()
        elif stages.status == "ready":
            freeze_heap()
            calls.ready_after_s = warm_s
            print(f"Ready after {warm_s:.1f} s: open {page}", flush=True)
            for name, problem in stages.remote_problems().items():
                what = {"llm": "language model", "asr": "recognizer"}.get(name, name)
                print(f"The {what} does not answer: {problem}.", file=sys.stderr)
            watching = group.create_task(_end_when_lost(stages, calls, server))
            serving.add_done_callback(lambda _: watching.cancel())
        else:
            _give_up(stages, calls, server)
        await serving
        for task in (draining, *beside):
            task.cancel()
    forget_local_key(port)
    status = 1 if stages.status == "failed" else 0
    await service.close()
    return status


def handle_signals(
    loop: asyncio.AbstractEventLoop,
    stop: asyncio.Event,
    reload: asyncio.Event,
    calls: CallRegistry,
) -> None:
    """Give the signals their meaning.

    SIGTERM and SIGINT stop the server, a second one at once. SIGHUP has the settings reloaded. Of a
    process with a terminal it says that this was closed: the server stops, unless the signal is
    ignored (`nohup`); it may come twice, and the second has no effect. SIGUSR1 and SIGUSR2 have
    no meaning: their default is to end the process without a drain.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def hang_up() -> None:
        if not calls.draining:
            stop.set()

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hang_up if has_terminal() else reload.set)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, _log.warning, "%s has no meaning here", number.name)


def has_terminal() -> bool:
    """True if the process has a controlling terminal, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def say(text: str) -> None:
    """Print a line, if there is still a terminal to print it to."""
    try:
        print(text, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else the end of the process fails to flush it
        os.close(nowhere)


def _give_up(stages: Stages, calls: CallRegistry, server: uvicorn.Server) -> None:
    """Print why the service can't continue, and end it; a new process may succeed."""
    print(stages.failure(), file=sys.stderr, flush=True)
    calls.stopping.set()
    calls.events.close()
    server.should_exit = True


async def _end_when_lost(stages: Stages, calls: CallRegistry, server: uvicorn.Server) -> None:
    """End the service once a model has lost its device, or can't be rebuilt in this process. The
    turn that failed has already reported it to its client."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if stages.status == "failed":
            _give_up(stages, calls, server)
            return


async def _reload_when(reload: asyncio.Event, reloader: Reloader) -> None:
    while True:
        await reload.wait()
        reload.clear()
        await reloader.reload_quietly()


async def _drain_when(
    stop: asyncio.Event, calls: CallRegistry, server: uvicorn.Server, drain_s: float
) -> None:
    await stop.wait()
    stop.clear()
    if len(calls):
        number = "1 call" if len(calls) == 1 else f"{len(calls)} calls"
        say(f"Stopping: {number} may finish within {drain_s} s.")
    await drain(calls, drain_s, stop)
    calls.events.close()
    server.should_exit = True
