"""Harness: calls that play recordings turn after turn, and the record of each turn.

Shared by `bench voice` and `bench turns`. Several callers may call at once; each call is one
connection, and every figure is taken at that caller's ear.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.client import events as ev
from agent.client.call import Call, connect
from agent.client.errors import CallEndedError
from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.playback import NS_PER_S
from agent.client.simulated_caller.spoken_turn import NS_PER_MS, SpokenTurn
from agent.client.simulated_caller.talk import fetch_trace
from agent.http.auth.cli_credentials import CliCredentials, entry_at
from benchmarks.signals.backchannels import Backchannel
from benchmarks.signals.recordings import TurnRecording
from latency_budget.account.marks import Mark
from latency_budget.reporting.trace import TraceError, read_trace

from .backchannel_metric import Aside, Asides
from .history_check import HeardWords
from .stereo_check import StereoCall, recorded_call

CONNECT_S: Final = 10.0
"""Timeout in s of connecting to a full server: the previous call may just be ending."""

ANSWER_S: Final = 5.0
"""Timeout in s of a server's answer about its history."""

BARGE_IN_SHARE: Final = 0.8
"""Share of answers that are interrupted, with barge-ins on. The others are heard to their end, so
that both kinds of history stand in one conversation."""

BARGE_IN_S: Final = (0.1, 2.0)
"""Range in s of an answer heard before the caller interrupts it, uniform. Replies last 1 to 5 s;
one that is over by then is not interrupted."""


ASIDE_SHARE: Final = 0.8
"""Share of the uninterrupted answers that get a backchannel, with backchannels on."""

ASIDE_S: Final = (0.3, 2.0)
"""Range in s of an answer heard before the caller says "mm-hmm", uniform. Listeners respond to no
less; an answer that is over by then gets none."""


@dataclass(frozen=True, slots=True)
class CallerPlan:
    """Behaviour of the caller in one call."""

    cut_after_s: float | None = None
    """Time in s of each answer after which the caller cancels it; None: never."""
    patience_s: float = 20.0
    """Time in s to wait for an answer, from the end of the recording."""
    turn_detection: dict[str, Any] | None = None
    """`turn_detection` to request; None: the server's default."""
    barge_in_seed: int | None = None
    """Seed of the random times at which answers are interrupted; None: never."""
    aside_seed: int | None = None
    """Seed of the random times at which `backchannels` are said over answers; None: never."""
    backchannels: Sequence[Backchannel] = ()
    language: str = ""
    """Language of the call; empty: the agent's."""
    is_stock: bool = False
    """Stock client: offers no extensions and stops playing at `speech_started`."""
    stereo: Path | None = None
    """File to record the call to, and to measure it from; None: not recorded."""


@dataclass(slots=True)
class HeldCall:
    """Record of one call. `exchanges[i]` belongs to `recordings[i]`; fewer, if the call broke."""

    recordings: Sequence[TurnRecording]
    exchanges: list[SpokenTurn] = field(default_factory=list)
    marks: tuple[Mark, ...] = ()
    """The server's marks; empty if it sends no trace."""
    num_checked: int = 0
    """Number of replies whose words in the history were compared with the audio heard."""
    mismatches: list[str] = field(default_factory=list)
    """Differences between history and audio, in words."""
    asides: list[Aside] = field(default_factory=list)
    """Words said over replies, each with its outcome."""
    stereo: StereoCall | None = None
    """Measurements from the recording of the call, if one was made."""
    errors: list[str] = field(default_factory=list)

    def all_errors(self) -> list[str]:
        return [*self.errors, *(error for each in self.exchanges for error in each.errors)]


async def hold(recordings: Sequence[TurnRecording], url: str, plan: CallerPlan) -> HeldCall:
    """Say each recording in real time in one call. Raises ConnectError.

    A call that ends early returns the turns so far, with an error.
    """
    held = HeldCall(recordings)
    words = HeardWords()
    entry = entry_at(url)
    options: dict[str, Any] = {"api_key": entry.api_key, "tls": entry.tls, "reconnect": False}
    async with connect(url, **options, wait_s=CONNECT_S, extensions=not plan.is_stock) as call:
        wanted: dict[str, Any] = {}
        if plan.turn_detection is not None:
            wanted["turn_detection"] = plan.turn_detection
        if plan.language:
            wanted["transcription"] = {"language": plan.language}
        if wanted:
            await call.update(audio={"input": wanted})
        asides = Asides("ducks" if call.extensions else "stock")
        held.asides = asides.all

        def note(event: ev.ClientEvent) -> None:
            words.note(event)
            asides.note(event)

        caller = SimulatedCaller(call, on_event=note, cut_after_s=plan.cut_after_s)
        async with asyncio.TaskGroup() as group:
            group.create_task(caller.run())
            try:
                await converse(caller, asides, recordings, plan)
                await caller.wait_reports()
                if plan.barge_in_seed is not None or plan.aside_seed is not None:
                    await check_history(call, caller, words, held)
            except CallEndedError as error:
                held.errors.append(str(error))
            caller.stop()
        held.exchanges = caller.exchanges
        if plan.stereo is not None:
            held.stereo = await asyncio.to_thread(recorded_call, caller, plan.stereo)
        try:
            held.marks = await _marks(url, call.session_id, entry)
        except TraceError as error:
            held.errors.append(f"The server's trace can't be read: {error}")
    return held


async def converse(
    caller: SimulatedCaller, asides: Asides, recordings: Sequence[TurnRecording], plan: CallerPlan
) -> None:
    """Say every recording and hear its answer, with the plan's behaviour."""
    barge_in = None if plan.barge_in_seed is None else random.Random(plan.barge_in_seed)
    aside = None if plan.aside_seed is None else random.Random(f"aside {plan.aside_seed}")
    share = BARGE_IN_SHARE if aside is None else BARGE_IN_SHARE / 2
    for number, one in enumerate(recordings, start=1):
        exchange = caller.say(one.pcm, one.rate_hz, one.voiced_s)
        patience_s = len(one.pcm) / one.rate_hz + plan.patience_s
        is_last = number == len(recordings)
        if barge_in is not None and barge_in.random() < share and not is_last:
            await hear_part(caller, exchange, barge_in.uniform(*BARGE_IN_S), patience_s)
            continue
        if aside is not None and aside.random() < ASIDE_SHARE:
            part_s, sound = aside.uniform(*ASIDE_S), aside.choice(plan.backchannels)
            heard = await hear_part(caller, exchange, part_s, patience_s)
            if heard is not None:
                asides.begin(sound.words, heard, caller.loudspeaker)
                caller.say(sound.pcm, sound.rate_hz, is_aside=True)
        await caller.wait_quiet(patience_s)
        asides.settle()


async def hear_part(
    caller: SimulatedCaller,
    exchange: SpokenTurn,
    part_s: float,
    patience_s: float,
    *,
    is_over: Callable[[int], bool] | None = None,
) -> str | None:
    """Wait until so much of the answer was heard, or all. Returns the reply being heard then.
    `is_over`, with the time in ns, tells that no more is to come; by default `is_quiet`. Raises
    CallEndedError."""
    heard: list[str | None] = [None]
    is_over = caller.is_quiet if is_over is None else is_over

    def is_enough(now_ns: int) -> bool:
        heard[0] = caller.loudspeaker.reply_heard(now_ns)
        is_all = is_over(now_ns)
        if exchange.e2e_ear_ms is None or exchange.last_voiced_ns is None:
            return is_all
        onset_ns = exchange.last_voiced_ns + exchange.e2e_ear_ms * NS_PER_MS
        return is_all or now_ns - onset_ns >= part_s * NS_PER_S

    await caller.wait_until(is_enough, patience_s)
    return heard[0]


async def check_history(
    call: Call, caller: SimulatedCaller, words: HeardWords, held: HeldCall
) -> None:
    """Compare the history's text of every reply, heard wholly or in part, with the audio. `held` is
    given the result. Raises CallEndedError."""
    asked = {
        response_id: words.items[response_id]
        for exchange in caller.exchanges
        for response_id in exchange.replies
        if response_id in words.items
    }
    for item_id in asked.values():
        await call.send({"type": "conversation.item.retrieve", "item_id": item_id})
    wanted = set(asked.values())
    if not await caller.wait_until(lambda _: wanted <= words.history.keys(), ANSWER_S):
        held.errors.append("The server did not say how its replies stand in the history.")
    for response_id, item_id in asked.items():
        if item_id in words.history:
            played_s = caller.loudspeaker.played_s(response_id)
            complaint = words.complaint(item_id, played_s)
            held.num_checked += 1
            held.mismatches += [] if complaint is None else [complaint]


async def _marks(url: str, session_id: str, entry: CliCredentials) -> tuple[Mark, ...]:
    trace = await fetch_trace(url, session_id, entry)
    return tuple(read_trace(trace.splitlines()).marks()) if trace else ()


def in_batches(
    recordings: Sequence[TurnRecording], turns_a_call: int, callers: int
) -> list[list[list[TurnRecording]]]:
    """Split recordings into `rounds[round][caller]`, batches of about the same length, so that no
    caller is alone for long. With fewer recordings than callers there are fewer callers."""
    callers = min(callers, len(recordings))
    num_rounds = -(-len(recordings) // (callers * turns_a_call))
    batches = [list(recordings[n :: num_rounds * callers]) for n in range(num_rounds * callers)]
    batches = [batch for batch in batches if batch]
    return [batches[first : first + callers] for first in range(0, len(batches), callers)]


async def hold_round(
    batches: Sequence[Sequence[TurnRecording]], url: str, plans: Sequence[CallerPlan]
) -> list[HeldCall]:
    """Hold one call per batch, all at once. Raises the first ConnectError."""
    try:
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(hold(batch, url, plan))
                for batch, plan in zip(batches, plans, strict=True)
            ]
    except ExceptionGroup as errors:
        raise _first_leaf(errors) from None
    return [call.result() for call in calls]


def _first_leaf(group: ExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first_leaf(first) if isinstance(first, ExceptionGroup) else first
