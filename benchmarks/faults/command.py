"""`halfsec bench faults`: what a caller hears and loses when a part fails, fault by fault.

The plan is `plan.py`. For each fault a caller is in a call (`witness.py`) with a server that the
bench started and can break (`faulty_server.py`). The exit status is 1 where a caller was left for
longer than 2 s without sound, event or close, where promised state of a call was lost, or where no
turn was answered any more without a person. A fault that can't be made here says so, and is neither
passed nor failed.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from agent.client.call import wait_ready
from agent.client.errors import ConnectError
from agent.config.home import halfsec_home
from agent.errors import BenchError
from benchmarks.callers.control_socket import SOCKET_VARIABLE, request
from benchmarks.callers.server_process import (
    OwnServer,
    ServerLaunch,
    ending_in_order,
    free_port,
    own_server,
)
from benchmarks.signals.recordings import TurnRecording, find_recordings
from benchmarks.soak.command import make_home
from benchmarks.soak.samples import read_server
from benchmarks.voice.report import heading, save
from latency_budget.account.clock import SystemClock
from latency_budget.host import resident_mb

from .damaged_models import damageable, start_damaged
from .fault_case import REPLY_TOKENS, FaultCase, FaultSite, Surroundings, dial
from .network import bad_network
from .plan import CASES
from .report import (
    FAILS,
    NOT_RUN,
    FaultRow,
    MemoryFigures,
    markdown,
    row_of,
    row_of_start,
)
from .witness import Observation, Witness

START_TIMEOUT_S: Final = 180.0
NUM_RECORDINGS: Final = 20
STORED_S: Final = 5.0
"""Timeout in s of the store's writes after a call."""
ATTEMPTS: Final = 3
"""Calls in which a stage's fault may hit nothing."""
SETTLE_S: Final = 60.0
"""Time in s from an answered turn to the last look at the server's memory."""
RETURNED_S: Final = 10.0
"""Time in s from the return of a call that hung until its memory is looked at."""

Json = dict[str, Any]


class FaultyServer:
    """The server of several rows; started where there is none, and anew where a row spoilt it."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self._folder = folder
        self._arguments = arguments
        self._stack = contextlib.ExitStack()
        self._served: OwnServer | None = None
        self._number = 0
        self.port = free_port()
        self._home = folder / "home"
        self._log = folder / "server.log"
        self.around: Surroundings | None = None
        """What the next server has around it. Set while none runs."""
        self.was_ready = False
        """It was ready once: what fails from then on is the row's fault, not the command line's."""

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def home(self) -> Path:
        own = None if self.around is None else self.around.home
        return self._home if own is None else own

    @property
    def control(self) -> Path:
        return self._folder / f"control{self._number}"

    async def running(self) -> OwnServer:
        """The server, ready. Raises BenchError, ConnectError."""
        if self._served is None:
            self._number += 1
            environment = {SOCKET_VARIABLE: str(self.control), "HALFSEC_HOME": str(self.home)}
            log, max_tokens = self._log, REPLY_TOKENS
            if self.around is not None:
                environment |= self.around.launched()
                max_tokens = self.around.max_reply_tokens
                log = self.around.log or log
            launch = ServerLaunch("benchmarks.faults.faulty_server", environment, log, self.port)
            given = ["--set", "latency_budget.store=true", "--set", "agent.log_level=info"]
            given += ["--set", f"llm_engine.max_tokens={max_tokens}"]
            try:
                self._served = await asyncio.to_thread(
                    self._stack.enter_context, own_server([*given, *self._arguments], launch)
                )
            except BenchError as error:
                raise BenchError(f"{error} Its log ends: {last_line(log)}") from None
            await wait_ready(self._served.url, START_TIMEOUT_S)
            self.was_ready = True
        return self._served

    @property
    def pid(self) -> int | None:
        """Its process now; None: none runs."""
        return None if self._served is None else self._served.pid

    async def stop(self) -> None:
        """End the process, if there is one."""
        self._served = None
        await asyncio.to_thread(self._stack.close)

    async def restart(self) -> None:
        """Start it anew, as a supervisor does."""
        await self.stop()
        await self.running()


def last_line(log: Path) -> str:
    """Last line of a log, which says why a server did not start."""
    text = log.read_text("utf-8", "replace").strip() if log.exists() else ""
    return text.splitlines()[-1] if text else "(nothing)"


async def run_case(
    case: FaultCase,
    server: FaultyServer,
    recordings: Sequence[TurnRecording],
    settle_s: float = SETTLE_S,
) -> FaultRow:
    """Hold the call around one fault."""
    reason = case.not_here()
    if reason:
        return FaultRow(case.name, NOT_RUN, [reason])
    async with _surrounded(case, server):
        for _ in range(ATTEMPTS):
            row = await _attempt(case, server, recordings, settle_s)
            if row is not None:
                return row
    return FaultRow(case.name, NOT_RUN, ["the stage was not used after the fault was armed"])


@contextlib.asynccontextmanager
async def _surrounded(case: FaultCase, server: FaultyServer) -> AsyncIterator[None]:
    """Give the server what the case has around it, for the length of the block."""
    if case.around is None:
        yield
        return
    await server.stop()
    with TemporaryDirectory(prefix="around-", dir=server.folder) as name:
        async with case.around(Path(name)) as around:
            server.around = around
            try:
                yield
            finally:
                await server.stop()
                server.around = None


async def _attempt(
    case: FaultCase, server: FaultyServer, recordings: Sequence[TurnRecording], settle_s: float
) -> FaultRow | None:
    """The row; None where the fault hit nothing, and is disarmed again. Raises BenchError and
    ConnectError where the server could not be started even once."""
    try:
        served = await server.running()
    except (BenchError, ConnectError) as error:
        if not server.was_ready:
            raise
        return row_of(case.name, Observation(heard=[str(error)]), keeps_call=case.keeps_call)
    async with contextlib.AsyncExitStack() as stack:
        url, network = served.url, None
        if case.through_network:
            network = await stack.enter_async_context(bad_network(server.port))
            url = f"ws://127.0.0.1:{network.port}{urlsplit(served.url).path}"
        site = FaultSite(
            served.pid,
            server.control,
            server.home,
            network,
            server.restart,
            served.url,
            server.around,
        )
        before = await _num_hits(case, server)
        lost_before = await _num_lost(served.url)
        memory = _MemoryLook(server)
        aftermath = None
        try:
            found = await _witnessed(case, site, url, recordings, memory)
            aftermath = await case.look(site)
        except* (BenchError, ConnectError, OSError, RuntimeError) as errors:
            found = Observation(heard=[str(_first(errors))])
        memory.note_after()
        after = await _num_hits(case, server)
        if before is not None and after == before:
            await site.command(stage=case.stage, how="raise", times=0)
            return None
        lost = _difference(lost_before, await _num_lost(served.url))
    row = row_of(case.name, found, keeps_call=case.keeps_call, num_lost=lost, aftermath=aftermath)
    return replace(row, memory_mb=await memory.settled(case, settle_s))


async def _witnessed(
    case: FaultCase,
    site: FaultSite,
    url: str,
    recordings: Sequence[TurnRecording],
    memory: "_MemoryLook",
) -> Observation:
    """What the caller heard and saw. Raises ConnectError, and groups of what the case raised."""

    async def strike() -> None:
        memory.note_before()
        await case.strike(site)

    witness = Witness(
        url,
        recordings,
        strike,
        lambda: case.mend(site),
        at_end_of_speech=case.at_end_of_speech,
        session=case.session,
        dial=dial if site.around is None else site.around.dial,
    )
    found = await witness.run()
    memory.note_after()
    return found


class _MemoryLook:
    """Resident memory of the server's process around one fault."""

    def __init__(self, server: FaultyServer) -> None:
        self._server = server
        self._clock = SystemClock()
        self._found = MemoryFigures()
        self._struck_ns = self._clock.now_ns()
        self._over_ns: int | None = None

    def note_before(self) -> None:
        """The fault strikes now."""
        self._struck_ns = self._clock.now_ns()
        self._found = MemoryFigures(before=self._now_mb())

    def note_after(self) -> None:
        """A turn was answered, or there is none any more; the first time counts."""
        if self._over_ns is None:
            self._over_ns = self._clock.now_ns()
            self._found = replace(self._found, after=self._now_mb())

    async def settled(self, case: FaultCase, settle_s: float) -> MemoryFigures:
        """Wait, and look again; where something hung, once more when it has come back."""
        if settle_s <= 0:
            return self._found
        await self._until((self._over_ns or self._struck_ns) + round(settle_s * 1e9))
        found = replace(self._found, settled=self._now_mb(), settled_s=settle_s)
        if case.hangs_s:
            await self._until(self._struck_ns + round((case.hangs_s + RETURNED_S) * 1e9))
            found = replace(found, returned=self._now_mb())
        return found

    async def _until(self, at_ns: int) -> None:
        await asyncio.sleep(max(0, at_ns - self._clock.now_ns()) / 1e9)

    def _now_mb(self) -> float | None:
        pid = self._server.pid
        return None if pid is None else resident_mb(pid)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group, or in groups within."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _num_lost(url: str) -> int | None:
    """Turns that the server's store has lost so far, once it has written what waits, or after
    `STORED_S`; None where the server does not say."""
    for _ in range(round(STORED_S)):
        values = await read_server(url)
        if not values.get("store_waiting"):
            break
        await asyncio.sleep(1.0)
    return int(values["store_lost"]) if "store_lost" in values else None


def _difference(before: int | None, after: int | None) -> int | None:
    """What came to a counter; one of a process that was started anew began at 0."""
    if before is None or after is None:
        return None
    return after - before if after >= before else after


async def _num_hits(case: FaultCase, server: FaultyServer) -> int | None:
    """How often the case's stage was hit; None without a stage, or where the server is gone."""
    if case.stage is None:
        return None
    try:
        answer = await asyncio.to_thread(request, server.control)
    except (OSError, ValueError, RuntimeError):
        return None
    return int(answer["hits"][case.stage])


async def run_cases(
    cases: Sequence[FaultCase],
    recordings: Sequence[TurnRecording],
    arguments: Sequence[str],
    folder: Path,
    tell: Callable[[FaultRow], None],
    settle_s: float = SETTLE_S,
) -> None:
    """Run the cases one after the other; `tell` is called with each row when it is known."""
    server = FaultyServer(folder, arguments)
    try:
        for case in cases:
            row = await run_case(case, server, recordings, settle_s)
            tell(row)
            if case.spoils or row.verdict == FAILS:
                await server.stop()
    finally:
        await server.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if no row failed."""
    options = _parser().parse_args(argv)
    cases = [each for each in CASES if _chosen(each.name, options.only)]
    models = options.damaged_model
    known = damageable(halfsec_home()) if models else []
    for name in models:
        if name not in known:
            raise BenchError(
                f"There is no model {name!r}; there are: {', '.join(known) or 'none'}."
            )
    if models:
        cases = [each for each in cases if options.only]
    if options.list:
        print("".join(f"{each.name}\n" for each in cases), end="")
        return 0
    if not cases and not models:
        raise BenchError(f"No fault is called like {options.only}; --list names them.")
    recordings = find_recordings(options.recordings, NUM_RECORDINGS, options.seed) if cases else []
    rows: list[FaultRow] = []
    arguments = options.serve_args.split()
    head = heading("faults", vars(options))

    def tell(row: FaultRow) -> None:
        """Save what is known so far: a run takes a while, and may be broken off."""
        rows.append(row)
        why = f" ({'; '.join(row.why)})" if row.why else ""
        print(f"{row.fault}: {row.verdict}{why}", file=sys.stderr, flush=True)
        save(result_of(head, rows), options.json)
        if options.markdown is not None:
            options.markdown.write_text(markdown(rows), encoding="utf-8")

    with TemporaryDirectory(prefix="halfsec-faults-") as name:
        folder = Path(name)
        make_home(folder / "home")
        try:
            with ending_in_order():  # the servers are started on other threads
                asyncio.run(run_cases(cases, recordings, arguments, folder, tell, options.settle))
        except ConnectError as error:
            raise BenchError(str(error)) from None
        for model in models:
            for has_index in (True, False):
                found = start_damaged(halfsec_home(), folder, model, arguments, has_index=has_index)
                tell(row_of_start(found))
    result = result_of(head, rows)
    print(f"\n{result['machine']}, {result['date']}\n\n{markdown(rows)}")
    return int(bool(result["failed"]))


def result_of(head: Json, rows: Sequence[FaultRow]) -> Json:
    """The result as JSON."""
    return {
        **head,
        "machine_load": os.getloadavg()[0],
        "rows": [row.as_json() for row in rows],
        "failed": sum(row.verdict == FAILS for row in rows),
        "not_run": sum(row.verdict == NOT_RUN for row in rows),
    }


def _chosen(name: str, only: Sequence[str]) -> bool:
    return not only or any(each in name for each in only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench faults",
        description="Break one part of the service after the other during a call, and report what "
        "the caller heard, for how long nothing, when the next turn was answered, and what was "
        "lost.",
        epilog='example: halfsec bench faults DIR --only "asr: hang" --only network',
    )
    add = parser.add_argument
    add("recordings", nargs="*", type=Path, help="files or folders")
    add("--only", action="append", default=[], metavar="TEXT", help="faults named so; repeatable")
    add("--list", action="store_true", help="name the faults, and do nothing")
    add(
        "--damaged-model",
        action="append",
        default=[],
        metavar="NAME",
        help="start with the file of this model damaged, one that the settings use; "
        "of the plan only what --only names; repeatable",
    )
    add("--seed", type=int, default=1, help="which recordings, in which order (%(default)s)")
    add(
        "--settle",
        type=float,
        default=SETTLE_S,
        metavar="S",
        help="time in s until the memory is looked at for the last time; 0: not then (%(default)g)",
    )
    add("--serve-args", default="", help='for the server that is started: "--preset cpu"')
    add("--json", type=Path, metavar="FILE", help="save the result")
    add("--markdown", type=Path, metavar="FILE", help="save the table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
