"""A caller around a fault: what was heard and seen, for how long nothing was, and what came after.

The caller says one turn that is answered, then another during which the fault strikes, then further
ones until one is answered. A call that ends is followed by a new one, as a person dials again.

Replies are heard to their end, for only then is it known what they were: a spoken apology sounds
like an answer until the reply ends as failed. (A caller that cancels a reply after a second cancels
the apology as well, and its error is never sent.) Nor is a reply an answer that holds nothing but
sentences of the service's own, such as "One moment."
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from agent.client import events as ev
from agent.client.call import Call
from agent.client.errors import CallEndedError, ConnectError
from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.playback import NS_PER_S
from agent.client.simulated_caller.spoken_turn import SpokenTurn
from benchmarks.signals.recordings import TurnRecording
from languages import ENGLISH
from latency_budget.account.clock import SystemClock
from latency_budget.account.marks import AUDIBLE

from .fault_case import dial
from .silence import Span, longest_silence_ns

PATIENCE_S: Final = 20.0
"""Time in s that the caller waits for an answer before saying something else."""
TICK_S: Final = 0.02
"""Time in s between two looks at whether the caller's speech is over."""
GIVE_UP_S: Final = 90.0
"""Time in s from the fault after which there is no recovery."""
HISTORY_S: Final = 5.0


@dataclass(slots=True)
class Observation:
    """What the caller heard and saw."""

    heard: list[str] = field(default_factory=list)
    """In words, in order: answers, apologies, errors, breaks and closes."""
    longest_silence_s: float = 0.0
    next_answer_s: float | None = None
    """From the fault to the first audible sample of the next answered turn."""
    next_answer: str = ""
    """What the model said in that turn, without sentences of the service's own."""
    history_kept: bool | None = None
    """The turn before the fault is still in the call's history; None: not asked."""
    num_unanswered: int = 0
    """Turns said from the fault on that had no answer, or an error in its place."""
    num_calls: int = 1
    """Calls that it took."""


class Ear:
    """Takes note of every event of a call."""

    def __init__(self) -> None:
        self.signs: list[int] = []
        self.sounds: list[Span] = []
        self.heard: list[str] = []
        self.item_ids: list[str] = []
        """Items of the caller's turns."""
        self.items: set[str] = set()
        """Items that the server has, of those asked for."""
        self._said: dict[str, str] = {}
        """What the model said in replies that ended by themselves and without an error, where it
        said something."""
        self._dry_ns = 0

    def note(self, event: ev.ClientEvent) -> None:
        if not isinstance(event, ev.Waiting):  # most clients, and telephones, have none of it
            self.signs.append(event.at_ns)
        match event:
            case ev.ReplyAudio():
                self._play(event)
            case ev.SpeechStarted() | ev.Reconnecting() | ev.Closed():
                self._stop(event.at_ns)
            case ev.ReplyDone(status="cancelled"):
                self._stop(event.at_ns)
            case ev.ReplyDone(error_message=None, text=text, response_id=response_id):
                if said := said_by_model(text):
                    self._said[response_id] = said
            case ev.Transcript(item_id=item_id):
                self.item_ids.append(item_id)
            case ev.ItemRetrieved(item_id=item_id):
                self.items.add(item_id)
        words = in_words(event)
        if words is not None:
            self.heard.append(words)

    def is_answered(self, exchange: SpokenTurn) -> bool:
        """True if a reply to it was audible and came to its end, and nothing failed: not a spoken
        apology, nor another sentence of the service's own, nor a sound without words."""
        return bool(exchange.answered and not exchange.errors and self.answer_to(exchange))

    def answer_to(self, exchange: SpokenTurn) -> str:
        """What the model said to it; empty: nothing."""
        return " ".join(self._said[each] for each in exchange.replies if each in self._said)

    def _play(self, event: ev.ReplyAudio) -> None:
        begin_ns = max(event.at_ns, self._dry_ns)
        self._dry_ns = begin_ns + len(event.pcm) * NS_PER_S // event.rate_hz
        if len(event.pcm) and int(np.abs(event.pcm.astype(np.int32)).max()) > AUDIBLE:
            self.sounds.append((begin_ns, self._dry_ns))

    def _stop(self, at_ns: int) -> None:
        """Nothing more is played."""
        self._dry_ns = min(self._dry_ns, at_ns)
        self.sounds = [(begin, min(end, at_ns)) for begin, end in self.sounds if begin < at_ns]


def said_by_model(text: str) -> str:
    """A reply's text without the sentences of the service's own, in front of it or alone."""
    sentences = ENGLISH.sentences
    own = (sentences.apology, sentences.idle_prompt, sentences.tool_wait, *sentences.openers)
    text = text.strip()
    while found := next((each for each in own if text.startswith(each)), ""):
        text = text.removeprefix(found).strip()
    return text


def in_words(event: ev.ClientEvent) -> str | None:
    """What an event means to the caller; None for those that say nothing."""
    match event:
        case ev.ReplyDone(error_message=str(message), text=text):
            return f"failed: {text!r} ({message})"
        case ev.ReplyDone(status=status, text=text) if status == "completed" or text:
            return f"answer: {text!r}"
        case ev.ServerError(message=message):
            return f"error: {message}"
        case ev.Reconnecting(reason=reason):
            return f"break: {reason}"
        case ev.Resumed():
            return "the call is resumed"
        case ev.Restarted():
            return "another call begins in its place"
        case ev.Closed(code=code, reason=reason):
            return f"close: {code} {reason}"
    return None


Strike = Callable[[], Coroutine[Any, Any, None]]


class Witness:
    """One caller around one fault."""

    def __init__(
        self,
        url: str,
        recordings: Sequence[TurnRecording],
        strike: Strike,
        mend: Strike,
        *,
        at_end_of_speech: bool = False,
        session: Mapping[str, Any] | None = None,
        dial: Callable[[str], AbstractAsyncContextManager[Any]] = dial,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        """`strike` is run while the second turn is said; a fault that is shorter than the turn,
        `at_end_of_speech`, when its last voiced sample is said. `mend` is run after its answer or
        the caller's patience, where the fault passes by itself in life too. `session`: fields that
        each call's session begins with."""
        self.found = Observation()
        self._url = url
        self._recordings = recordings
        self._strike = strike
        self._mend = mend
        self._at_end_of_speech = at_end_of_speech
        self._dial = dial
        self._session = dict(session or {})
        self._give_up_ns = round(give_up_s * NS_PER_S)
        self._clock = SystemClock()
        self._struck_ns: int | None = None
        self._mended = False
        self._num_said = 0

    async def run(self) -> Observation:
        """Hold calls until a turn is answered after the fault, or for `give_up_s`. Raises
        ConnectError where the server can't be called before the fault."""
        while True:
            await self._call()
            if self.found.next_answer_s is not None or self._is_late():
                return self.found
            await self._mend_once()
            self.found.num_calls += 1
            self.found.history_kept = False

    async def _call(self) -> None:
        ear = Ear()
        try:
            async with self._dial(self._url) as call:
                if self._session:
                    await call.update(**self._session)
                caller = SimulatedCaller(call, on_event=ear.note, record=False)
                async with asyncio.TaskGroup() as group:
                    group.create_task(caller.run())
                    with contextlib.suppress(CallEndedError):  # the ear has the reason
                        await self._converse(caller, ear)
                    # Before the history is asked for: what that fails by is no turn's error.
                    _account(self.found, caller, ear, self._struck_ns)
                    with contextlib.suppress(CallEndedError):
                        await self._check_history(call, caller, ear)
                    caller.stop()
        except ConnectError as error:
            if self._struck_ns is None:
                raise
            ear.heard.append(f"can't connect: {error}")
        self.found.heard += ear.heard

    async def _converse(self, caller: SimulatedCaller, ear: Ear) -> None:
        if self._struck_ns is None:
            first = await self._answer(caller, self._say(caller))
            if not ear.is_answered(first):
                self.found.heard.append("(the turn before the fault had no answer)")
            self._struck_ns = self._clock.now_ns()
            ended: CallEndedError | None = None
            async with asyncio.TaskGroup() as group:
                exchange = self._say(caller)
                group.create_task(self._strike_during(exchange, caller))
                try:
                    await self._answer(caller, exchange)
                except CallEndedError as error:  # the strike goes on to its end
                    ended = error
            if ended is not None:
                raise ended
        await self._mend_once()
        while _next_answered(caller, ear, self._struck_ns) is None and not self._is_late():
            await self._answer(caller, self._say(caller))

    async def _strike_during(self, exchange: SpokenTurn, caller: SimulatedCaller) -> None:
        if self._at_end_of_speech:
            while caller.closed is None:
                if _is_said(exchange, self._clock.now_ns()):
                    break
                await asyncio.sleep(TICK_S)
            self._struck_ns = exchange.last_voiced_ns or self._clock.now_ns()
        await self._strike()

    async def _check_history(self, call: Call, caller: SimulatedCaller, ear: Ear) -> None:
        """Ask for the first turn of the first call."""
        if self.found.num_calls > 1 or not ear.item_ids or caller.closed is not None:
            return
        item_id = ear.item_ids[0]
        await call.send({"type": "conversation.item.retrieve", "item_id": item_id})
        await caller.wait_until(lambda _: item_id in ear.items, HISTORY_S)
        self.found.history_kept = item_id in ear.items

    async def _mend_once(self) -> None:
        if not self._mended:
            self._mended = True
            await self._mend()

    def _is_late(self) -> bool:
        struck_ns = self._struck_ns
        return struck_ns is None or self._clock.now_ns() - struck_ns > self._give_up_ns

    def _say(self, caller: SimulatedCaller) -> SpokenTurn:
        recording = self._recordings[self._num_said % len(self._recordings)]
        self._num_said += 1
        return caller.say(recording.pcm, recording.rate_hz)

    async def _answer(self, caller: SimulatedCaller, exchange: SpokenTurn) -> SpokenTurn:
        """Wait until the answer was heard, or for the caller's patience. Raises CallEndedError."""
        await caller.wait_quiet(len(exchange.pcm) / caller.microphone.rate_hz + PATIENCE_S)
        return exchange


def _is_said(exchange: SpokenTurn, now_ns: int) -> bool:
    if exchange.last_voiced_ns is None:  # it waits, or has no speech
        return exchange.started_ns is not None
    return now_ns >= exchange.last_voiced_ns


def _onset_ns(exchange: SpokenTurn) -> int | None:
    if exchange.e2e_ear_ms is None or exchange.last_voiced_ns is None:
        return None
    return exchange.last_voiced_ns + round(exchange.e2e_ear_ms * 1e6)


def _next_answered(caller: SimulatedCaller, ear: Ear, struck_ns: int) -> SpokenTurn | None:
    """The first answered turn that ended after the fault."""
    for exchange in caller.exchanges:
        after = exchange.last_voiced_ns is not None and exchange.last_voiced_ns >= struck_ns
        if after and ear.is_answered(exchange):
            return exchange
    return None


def _account(found: Observation, caller: SimulatedCaller, ear: Ear, struck_ns: int | None) -> None:
    """Add the silences and unanswered turns of one call, from the fault on."""
    if struck_ns is None:
        return
    ended_ns = caller.closed.at_ns if caller.closed is not None else SystemClock().now_ns()
    waits: list[Span] = []
    for number, exchange in enumerate(caller.exchanges):
        if exchange.last_voiced_ns is None or exchange.last_voiced_ns < struck_ns:
            continue
        later = [each.started_ns for each in caller.exchanges[number + 1 :] if each.started_ns]
        end_ns = min(_onset_ns(exchange) or ended_ns, ended_ns, *later[:1])
        waits.append((exchange.last_voiced_ns, max(exchange.last_voiced_ns, end_ns)))
        found.num_unanswered += not ear.is_answered(exchange)
    silence_ns = longest_silence_ns(waits, ear.signs, ear.sounds)
    found.longest_silence_s = max(found.longest_silence_s, silence_ns / NS_PER_S)
    answered = _next_answered(caller, ear, struck_ns)
    onset_ns = None if answered is None else _onset_ns(answered)
    if answered is not None and onset_ns is not None:
        found.next_answer_s = (onset_ns - struck_ns) / NS_PER_S
        found.next_answer = ear.answer_to(answered)
