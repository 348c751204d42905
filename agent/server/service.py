"""The service without a port: its parts, what runs beside the calls, its drain and its end.

`server.py` runs it behind uvicorn, `ray_serve.py` as a replica behind the proxies of Ray Serve.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.calls.first_prompt import prefill_first_prompt
from agent.calls.recording import Recorder
from agent.calls.registry import CallRegistry
from agent.calls.state_store.load import SETTING as STATE_STORE_SETTING
from agent.calls.state_store.load import open_state_store
from agent.calls.state_store.store import ForeignDataError, StateStore, StoreUnavailableError
from agent.config.schema import Config, LatencySettings
from agent.errors import CLOSE_TIMEOUT_S, ConfigError
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile, keys_path
from agent.http.endpoints.metrics import tell_of_engine
from agent.observability.trace_export import TraceExporter
from agent.server.startup_checks.preflight import otel_is_disabled
from agent.stages.heap import HeapTrims, trim_heap
from agent.stages.model_store.catalogue import ModelStore, turn_store_path
from agent.stages.registry import Stages
from agent.tools.server_tools import ServerTools
from latency_budget.account.clock import Clock
from latency_budget.storage.database import Place
from latency_budget.storage.store import TurnStore

from .app import Application, create_app
from .descriptors import LOOK_EVERY_S as DESCRIPTORS_EVERY_S
from .descriptors import DescriptorWatch

if TYPE_CHECKING:
    from agent.calls.call_webhooks import CallWebhooks

TRIM_EVERY_S: Final = 10.0
"""Time between two looks whether the heap is to be trimmed. Shorter trims it between two calls that
follow each other."""


@dataclass(frozen=True, slots=True)
class Service:
    """Parts of one service. Belongs to its event loop."""

    stages: Stages
    access: Authenticator
    tools: ServerTools
    app: Application
    store: TurnStore | None
    exporter: TraceExporter | None
    recorder: Recorder | None
    state_store: StateStore
    webhooks: "CallWebhooks | None"

    @property
    def calls(self) -> CallRegistry:
        return self.app.calls

    async def run(self) -> None:
        """What goes on beside the calls, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.access.watch())
            group.create_task(tell_of_engine(self.stages, self.calls))
            group.create_task(_watch_descriptors())
            group.create_task(_trim(self.calls))
            group.create_task(self.stages.watch())
            group.create_task(self.app.webrtc.run())
            group.create_task(prefill_first_prompt(self.stages, self.tools, self.calls))

    async def close(self) -> None:
        """End the threads, with what is still to be written. The calls are over by now."""
        self.app.twilio.close()
        await self.stages.close()
        await self.state_store.close()
        for each in (self.webhooks, self.store, self.exporter, self.recorder):
            if each is not None:
                await asyncio.to_thread(each.close)


async def verify_state_store(store: StateStore) -> None:
    """Look whether the store answers; one that does not yet may do so later. Raises ConfigError
    where it can't be used."""
    try:
        await store.check()
    except StoreUnavailableError as error:
        print(f"No call can be resumed at another server yet: {error}.", file=sys.stderr)
    except ForeignDataError as error:
        await store.close()
        raise ConfigError(f"{STATE_STORE_SETTING}: {error}.", key=STATE_STORE_SETTING) from None


def make_service(
    config: Config,
    clock: Clock,
    *,
    replica: str,
    local_key: str = "",
    stages: Stages | None = None,
    read: Callable[[], Config] | None = None,
) -> Service:
    """Build the parts; the stages are not started yet.

    `replica`: name of this process among those that share a store of turns, unless the settings
    have one. `local_key`: key of this process for commands on the same machine. `stages`: others
    than those of the settings. `read`: reads the settings anew, for a reload. Raises ConfigError.
    """
    state_store = open_state_store(config, clock)
    stages = stages or Stages(config, ModelStore(), clock)
    webhooks = _webhooks(config, clock)
    store = _store(config.latency_budget, replica, webhooks)
    if webhooks is not None:
        webhooks.start()
    exporter = _exporter(config)
    access = Authenticator(
        config, KeyFile(keys_path()), clock, local_key=local_key, state_store=state_store
    )
    tools = ServerTools(config, clock)
    recorder = _recorder(config, clock)
    app = create_app(
        config, stages, clock, store, exporter, access, tools, recorder, state_store, webhooks, read
    )
    return Service(stages, access, tools, app, store, exporter, recorder, state_store, webhooks)


async def drain(calls: CallRegistry, drain_s: float, hurry: asyncio.Event | None = None) -> None:
    """Refuse new calls, let those in progress end by themselves for this time or until `hurry` is
    set, then end them: their clients get 1012."""
    calls.draining = True
    calls.waiting.end_all("the server is stopping")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s), asyncio.TaskGroup() as group:
            waits: set[asyncio.Task[Any]] = {group.create_task(calls.wait_empty())}
            if hurry is not None:
                waits.add(group.create_task(hurry.wait()))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
    calls.stopping.set()
    with contextlib.suppress(TimeoutError):  # what carries them would end them as if by the client
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await calls.wait_empty()


async def _watch_descriptors() -> None:
    watch = DescriptorWatch()
    loop = asyncio.get_running_loop()
    while True:
        watch.look(loop.time())
        await asyncio.sleep(DESCRIPTORS_EVERY_S)


async def _trim(calls: CallRegistry) -> None:
    """Give the memory that calls have freed back to the system, where it is worth it."""
    trims = HeapTrims()
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        if trims.is_due(len(calls), calls.admitted):
            await asyncio.to_thread(trim_heap)


def _store_place(settings: LatencySettings) -> Place | None:
    """Place of the store of turns; None where turns are not stored."""
    if settings.store is False:
        return None
    return turn_store_path() if settings.store is True else settings.store


def _store(
    settings: LatencySettings, replica: str, webhooks: "CallWebhooks | None"
) -> TurnStore | None:
    """Started store of turns; None where turns are not stored."""
    place = _store_place(settings)
    if place is None:
        return None
    store = TurnStore(
        place,
        replica=settings.replica or replica,
        max_turns=settings.store_turns,
        max_days=settings.store_days,
        on_unstored=None if webhooks is None else webhooks.send_unstored,
    )
    store.start()
    return store


def _webhooks(config: Config, clock: Clock) -> "CallWebhooks | None":
    """Senders of the webhooks, not started yet; None where there are no endpoints."""
    place = _store_place(config.latency_budget)
    if place is None or not config.webhooks:
        return None
    from agent.calls.call_webhooks import CallWebhooks

    return CallWebhooks(config.webhooks, place, clock)


def _recorder(config: Config, clock: Clock) -> Recorder | None:
    """Started recorder of calls; None where calls are not recorded."""
    settings = config.agent
    if not settings.record_dir:
        return None
    recorder = Recorder(
        Path(settings.record_dir).expanduser(),
        clock,
        max_days=settings.record_days,
        max_mb=settings.record_mb,
    )
    recorder.start()
    return recorder


def _exporter(config: Config) -> TraceExporter | None:
    """Started exporter of traces; None where no collector is configured."""
    endpoint = config.latency_budget.otlp_endpoint
    if not endpoint or otel_is_disabled():
        return None
    from agent.observability.otlp import OtlpSender

    exporter = TraceExporter(OtlpSender(endpoint, config.fingerprint()))
    exporter.start()
    return exporter
