"""Holds dialogues over the voice WebSocket, in real time, as a caller with a stock client's tools.

The caller's lines go through recognizer, end of turn, language model and voice; what comes back is
played by a simulated loudspeaker, and each line waits for the end of the answer before, or
interrupts it. Checks are those over text. They are asked of what the agent said against what the
caller *said*, whatever the recognizer made of it: a mishearing that spoils an answer spoils it for
the caller, too. The transcripts stand beside, with their word errors.

Answers that the agent broke off because the caller was not done yet are not judged: a cut-in is
counted, and what is said after the line is the answer. Tool calls that it made so count.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from agent.client import events as ev
from agent.client.call import Call, connect
from agent.client.errors import CallEndedError, ConnectError
from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.playback import NS_PER_S
from agent.client.simulated_caller.spoken_turn import NS_PER_MS, SpokenTurn
from agent.client.tools import Handler
from agent.errors import BenchError
from agent.http.auth.cli_credentials import entry_at
from asr.audio.samples import RATE_HZ
from benchmarks.asr.scoring import WordErrors, errors_in_words, load_jiwer, normalized
from benchmarks.voice.harness import CONNECT_S, HeldCall, check_history, hear_part
from benchmarks.voice.history_check import HeardWords
from tts.text.normalize import normalize

from .caller_voice import CallerVoice, SpokenLine
from .contestant import run_call
from .dialogue import Dialogue, DialogueTurn
from .domains import Arguments, Domain, State
from .judge import call_problems, holds, problems
from .records import DialogueRecord, Interruption, SpokenFigures, TurnResult

PATIENCE_S: Final = 60.0
"""Wait for an answer, and for its end, from the end of a line. Longer than a caller's: how late an
answer is, is counted apart, and a busy machine must not make it a wrong one."""

FILLERS: Final = frozenset({"er", "hmm", "uh", "um"})
"""Sounds of hesitation that a recognizer rightly leaves out of its transcripts."""

LEAD_S: Final = 2.0
"""Wait before the first line of a dialogue with tools. The server prefills them as soon as it has
them, and nobody speaks at once."""

OBEY_MS: Final = 1000.0
"""An answer that ends by itself so soon after the caller began to talk over it was not ignored: no
words are recognized before, and what was left were its last words."""


class VoiceContestant:
    """A server with its own models, at the other end of a call."""

    def __init__(self, url: str, voice: CallerVoice, *, key: str | None = None) -> None:
        """`url`: of the voice WebSocket. Raises BenchError without jiwer."""
        load_jiwer()
        self._url = url
        self._voice = voice
        self._entry = entry_at(url, key)

    def hold(self, dialogue: Dialogue) -> DialogueRecord:
        """Hold one dialogue in real time and judge it. Blocks. Raises BenchError where there is no
        server; a call that breaks is an error of the dialogue."""
        lines = [self._voice.speak(turn) for turn in dialogue.turns]  # before the server is busy
        try:
            return asyncio.run(self._hold(dialogue, lines))
        except ConnectError as error:
            raise BenchError(str(error)) from None

    async def _hold(self, dialogue: Dialogue, lines: Sequence[SpokenLine]) -> DialogueRecord:
        log, words, held = ReplyLog(), HeardWords(), HeldCall([])
        domain = dialogue.domain
        tools = DomainRun(domain)
        entry = self._entry
        options: dict[str, Any] = {"api_key": entry.api_key, "tls": entry.tls, "reconnect": False}
        async with connect(self._url, **options, wait_s=CONNECT_S) as call:
            if domain is not None:
                await _offer(call, domain, tools)

            def note(event: ev.ClientEvent) -> None:
                log.note(event)
                words.note(event)

            caller = SimulatedCaller(call, on_event=note)
            interrupted: list[str | None] = []
            async with asyncio.TaskGroup() as group:
                group.create_task(caller.run())
                try:
                    if domain is not None:
                        await caller.wait_until(lambda _: False, LEAD_S)
                    await _converse(caller, dialogue.turns, lines, log, tools, interrupted)
                    if any(turn.interrupts_after_ms is not None for turn in dialogue.turns):
                        await check_history(call, caller, words, held)
                except CallEndedError as error:
                    held.errors.append(str(error))
                caller.stop()
        held.exchanges = caller.exchanges
        record = DialogueRecord(
            dialogue.id,
            dialogue.category,
            turns=_turn_records(dialogue.turns, caller, log, tools, interrupted),
            num_history_checked=held.num_checked,
            history_problems=held.mismatches,
            errors=held.all_errors(),
        )
        if dialogue.state is not None and not holds(dialogue.state, tools.state):
            record.state_problem = f"state is {json.dumps(tools.state)}"
        return record


class DomainRun:
    """A domain's state in one call, and the calls of each line of the caller."""

    def __init__(self, domain: Domain | None) -> None:
        self.state: State = {} if domain is None else domain.fresh_state()
        self.calls: list[list[tuple[str, Arguments]]] = []
        self._domain = domain
        self._results: dict[tuple[str, str], str] = {}
        """Results of the calls since the caller's last line."""

    def begin_line(self) -> None:
        """Count what follows as made for the next line."""
        self.calls.append([])
        self._results.clear()

    def handler(self, name: str) -> Handler:
        """Function that runs a tool; a call that was made before in this turn gets its first
        result, as over text."""

        async def run(**given: Any) -> str:
            assert self._domain is not None
            key = name, json.dumps(given, sort_keys=True)
            if key not in self._results:
                arguments, self._results[key] = run_call(self._domain, self.state, *key)
                self.calls[-1].append((name, arguments))
            return self._results[key]

        run.__name__ = name
        return run


class ReplyLog:
    """Replies of one call: their texts, and if more is to come. Takes the call's events."""

    def __init__(self) -> None:
        self.done: dict[str, ev.ReplyDone] = {}
        """By response id."""
        self.owes_reply = False
        """A tool was called, and the reply to its result has not begun."""

    def note(self, event: ev.ClientEvent) -> None:
        """Take in one event, in order."""
        match event:
            case ev.FunctionCall():
                self.owes_reply = True
            case ev.ReplyStarted():
                self.owes_reply = False
            case ev.ReplyDone(response_id=response_id):
                self.done[response_id] = event

    def text(self, replies: Sequence[str], *, with_broken: bool) -> str:
        """Words of these replies, as far as they were heard. `with_broken`: also of those that the
        caller's speech ended."""
        done = [self.done[each] for each in replies if each in self.done]
        texts = [
            each.text.strip() for each in done if with_broken or each.reason != "turn_detected"
        ]
        return " ".join(text for text in texts if text)


def spoken_errors(line: str, heard: str) -> WordErrors:
    """Word errors of a transcript. Both are compared as they are spoken, so that "$5" and "five
    dollars" are no error, and without `FILLERS`."""
    return errors_in_words([_spoken_words(line)], [_spoken_words(heard)])


def _spoken_words(text: str) -> list[str]:
    # In small letters: a name in capitals would be spelled.
    return [word for word in normalized(normalize(text.casefold())) if word not in FILLERS]


def interruption(
    heard: str | None, silenced_ms: float | None, left_ms: float | None
) -> Interruption:
    """What became of an answer that the caller talked over. `heard`: the reply that was being
    played; `silenced_ms`: until it was stopped; `left_ms`: what there was of it to play."""
    if heard is None:
        return "late"
    if silenced_ms is not None:
        return "obeyed"
    return "ended" if left_ms is None or left_ms < OBEY_MS else "ignored"


async def _offer(call: Call, domain: Domain, tools: DomainRun) -> None:
    """Add the domain to the session's instructions, and its tools."""
    await call.update(instructions=f"{call.session['instructions']} {domain.about}".strip())
    for tool in domain.tools:
        function = tool.definition()["function"]
        handler = tools.handler(tool.name)
        await call.tools.add(handler, function["description"], function["parameters"])


async def _converse(
    caller: SimulatedCaller,
    turns: Sequence[DialogueTurn],
    lines: Sequence[SpokenLine],
    log: ReplyLog,
    tools: DomainRun,
    interrupted: list[str | None],
) -> None:
    """Say every line and hear its answer, up to the next interruption. `interrupted` is given the
    reply that each line talks over."""

    def is_over(now_ns: int) -> bool:
        is_quiet = caller.is_quiet(now_ns)
        return is_quiet and not log.owes_reply

    heard: str | None = None
    for number, line in enumerate(lines):
        tools.begin_line()
        interrupted.append(heard)
        caller.microphone.hush()  # the room tone behind the line before
        exchange = caller.say(line.pcm, RATE_HZ)
        patience_s = line.speech_s + PATIENCE_S
        after_ms = turns[number + 1].interrupts_after_ms if number + 1 < len(turns) else None
        heard = None
        if after_ms is None:
            await caller.wait_until(is_over, patience_s)
        else:
            heard = await hear_part(caller, exchange, after_ms / 1000, patience_s, is_over=is_over)


def _turn_records(
    turns: Sequence[DialogueTurn],
    caller: SimulatedCaller,
    log: ReplyLog,
    tools: DomainRun,
    interrupted: Sequence[str | None],
) -> list[TurnResult]:
    """Judge every turn that was spoken."""
    records = []
    for number, (turn, exchange) in enumerate(zip(turns, caller.exchanges, strict=False)):
        is_interrupted = number + 1 < len(interrupted) and interrupted[number + 1] is not None
        reply, calls = log.text(exchange.replies, with_broken=is_interrupted), tools.calls[number]
        found = problems(turn, reply, calls, is_interrupted=is_interrupted)
        right = not call_problems(turn, calls)
        spoken = _figures(turn, exchange, caller, interrupted[number])
        records.append(TurnResult(turn.caller, reply, calls, found, right, spoken))
    return records


def _figures(
    turn: DialogueTurn, exchange: SpokenTurn, caller: SimulatedCaller, over: str | None
) -> SpokenFigures:
    errors = spoken_errors(turn.caller, exchange.caller_text)
    outcome = None
    if turn.interrupts_after_ms is not None:
        outcome = interruption(over, exchange.silenced_ms, _left_ms(exchange, caller, over))
    return SpokenFigures(
        exchange.caller_text,
        errors.words,
        errors.errors,
        exchange.e2e_ear_ms,
        exchange.cut_in,
        outcome,
        exchange.stopped_ms if outcome == "obeyed" else None,
    )


def _left_ms(exchange: SpokenTurn, caller: SimulatedCaller, over: str | None) -> float | None:
    """Time in ms that a reply was played from the beginning of this line on."""
    began_ns = exchange.onset_ns(caller.microphone.rate_hz)
    onset_ns = None if over is None else caller.loudspeaker.onset_ns(over)
    if over is None or onset_ns is None or began_ns is None:
        return None
    end_ns = onset_ns + round(caller.loudspeaker.played_s(over) * NS_PER_S)
    return (end_ns - began_ns) / NS_PER_MS
