"""Ledger of one turn: marks go in, spent and exposed time per stage come out.

Stages are the spans between marks (`stage_spans`). Which of them the caller waited for is decided
in `critical_path`; this module decides which marks count.

A turn may be tried several times before it is answered, because replies are prepared at every
pause. Only the attempt that was released counts. Which occurrence of a mark that is:

==================================  ==============================================================
caller_last_voiced, audio_received, the last, even after the release: the caller went on speaking,
speech_started                      and a release before that is a cut-in
speech_paused                       the last; it voids an earlier endpoint (the turn re-opened)
endpoint                            the last
asr_start                           the last; it opens a new pass and discards the one before
reply_requested                     the last; it opens a new attempt and discards the one before,
                                    unless a tool ran between: then both passes count
other marks of an attempt           the first of it: later pieces of the reply pass the same points
released and the others of `_ONCE`  the first: they happen once, and a repeated report is an echo
heard                               the earliest, for reports are held up; see `playback_time.py`
discarded                           all: the attempt is void, and its pass unless a newer began
llm_wasted                          all: their counts add up, and their times say nothing
acted                               the last of each action; that of an attempt is void with it
==================================  ==============================================================

Once released, the attempt is closed: what comes later belongs to the rest of the reply. A mark
that was made before the release and arrives after it (another thread made it) is still taken if
its place is empty. Once something was discarded, a mark that has no open pass or request, or is
older than it, comes from work that was cancelled and had not stopped yet, and is dropped.

A reply that was held back on purpose (`pace_start` to `pace_end`) waits in pacing like any other
that is ready; the duration is in `paced_ns` as well, so that both latencies are known. One whose
first sound is an opener made the caller wait for the stage that was at work when the opener was
put in front of it: that stage's stretch ends there.

An early opener (`early_opener`) is spoken at a lower certainty than the answer needs: such a turn
has the end-to-end time of the opener, which is the first audible sample, and `answer_audible` says
when the answer came. Without that nothing was answered, whatever stopped it: the turn is not
counted as answered, nor as cut in, and has no end-to-end time.

A turn is cut in where the reply was audible before the last voiced frame of the utterance, or where
`cut_in` says that speech of the same turn went on afterwards; it has no end-to-end time. Whether it
did is not seen from marks: the words decide, and the agent marks it when they are there.

A turn with marks missing or in the wrong order is kept and lists them in `incomplete`; a pair in
the wrong order gives no span, and its time shows as a gap.
"""

from collections.abc import Iterable, Mapping

from .actions import Action, ActionTaken
from .critical_path import critical_path
from .marks import Mark, MarkName
from .playback_time import doubts, heard_ns
from .stage_spans import WORK, relative, stage_at_work, stage_spans, stage_times
from .turn import Span, Stage, TurnId
from .turn_record import Origin, TurnRecord

MAX_TOOL_SPANS = 96
"""Three spans a round. An agent that calls tools in more than 32 rounds before its first word is
late anyway; further rounds show as gaps, and `incomplete` says so."""

_M = MarkName
_ASR_PASS = (_M.ASR_START, _M.ASR_FINAL)
_REPLY_ATTEMPT = (
    _M.REPLY_REQUESTED,
    _M.LLM_FIRST_TOKEN,
    _M.FIRST_PIECE,
    _M.TTS_START,
    _M.TTS_FIRST_CHUNK,
    _M.FIRST_AUDIBLE_READY,
)
_PLACES = {name: place for place, name in enumerate(_M)}
_CALLER = frozenset({_M.SPEECH_STARTED, _M.CALLER_LAST_VOICED, _M.AUDIO_RECEIVED})
_ONCE = frozenset(
    {
        _M.GREETING,
        _M.ASKED,
        _M.RELEASED,
        _M.HEARD_DOUBTED,
        _M.REPLY_DONE,
        _M.INTERRUPTED,
        _M.REOPENED,
        _M.CUT_IN,
        _M.WITHDRAWN,
        _M.LLM_CONDENSED,
        _M.PACE_START,
        _M.PACE_END,
        _M.OPENER,
        _M.EARLY_OPENER,
        _M.ANSWER_AUDIBLE,
    }
)
_STRUCTURAL = frozenset({_M.DISCARDED, _M.TOOL_START, _M.TOOL_DONE})
_SPOKEN = (_M.CALLER_LAST_VOICED, _M.AUDIO_RECEIVED, _M.SPEECH_PAUSED, *_ASR_PASS)
_NEEDED_SPOKEN = (*_SPOKEN, _M.ENDPOINT)
_NEEDED = (
    _M.REPLY_REQUESTED,
    _M.LLM_FIRST_TOKEN,
    _M.FIRST_PIECE,
    _M.TTS_START,
    _M.FIRST_AUDIBLE_READY,
    _M.RELEASED,
)
_NEEDED_OPENED = (_M.REPLY_REQUESTED, _M.FIRST_AUDIBLE_READY, _M.RELEASED)
"""Marks needed of a reply with an opener, which is heard before the model's first token."""
# Pairs of which the first causes the second. The pause and the last voiced frame are no such pair:
# the detector hears a soft ending otherwise than the loudness measure that defines the frame.
_ORDERED = (
    (_M.CALLER_LAST_VOICED, _M.AUDIO_RECEIVED),
    (_M.SPEECH_PAUSED, _M.ENDPOINT),
    *((start, end) for _, start, end in WORK),
    (_M.FIRST_PIECE, _M.TTS_START),
    (_M.FIRST_AUDIBLE_READY, _M.RELEASED),
    (_M.PACE_START, _M.PACE_END),
    (_M.PACE_END, _M.RELEASED),
    (_M.ENDPOINT, _M.RELEASED),
    (_M.RELEASED, _M.HEARD),
    (_M.RELEASED, _M.REPLY_DONE),
)


class TurnLedger:
    """Collects the marks of one turn. Not for use across threads: the session's loop owns it.

    Memory is bounded: one time per mark name, and `MAX_TOOL_SPANS`.
    """

    def __init__(self, turn: TurnId) -> None:
        self.turn = turn
        self._at: dict[MarkName, int] = {}
        self._first_request_ns: int | None = None
        self._tool_spans: list[Span] = []
        self._tools_running = 0
        self._tool_start_ns = 0
        self._speaks_before_tool = False
        self._has_discarded = False
        self._lost_tool_spans = False
        self._wasted_ns = 0
        self._wasted_prompt_tokens = 0
        self._wasted_output_tokens = 0
        self._actions: dict[Action, ActionTaken] = {}

    def add(self, mark: Mark) -> None:
        """Add a mark. Raises ValueError for a mark of another turn."""
        if mark.turn != self.turn:
            raise ValueError(f"a mark of turn {mark.turn} came to the ledger of turn {self.turn}")
        name, at_ns = mark.name, mark.at_ns
        if name is _M.LLM_WASTED:
            self._wasted_prompt_tokens += mark.prompt_tokens
            self._wasted_output_tokens += mark.output_tokens
        elif name is _M.ACTED:
            if mark.taken is not None:
                self._actions[mark.taken.action] = mark.taken
        elif name in _CALLER:
            self._at[name] = at_ns
        elif name is _M.HEARD:
            self._at[name] = min(at_ns, self._at.get(name, at_ns))
        elif name in _ONCE:
            if name is _M.RELEASED and name not in self._at and self._tools_running:
                # A prepared phrase is heard while the tool still runs.
                self._keep(Span(Stage.TOOL, self._tool_start_ns, at_ns))
            self._at.setdefault(name, at_ns)
        elif _M.RELEASED in self._at:
            if name not in _STRUCTURAL and at_ns <= self._at[_M.RELEASED]:
                self._at.setdefault(name, at_ns)
        elif name in _STRUCTURAL:
            self._add_structural(name, at_ns)
        else:
            self._add_work(name, at_ns)

    def at_work(self, *, decided: bool) -> Stage | None:
        """The stage that the answer waits for now. `decided`: the turn is known to be over. None
        once the answer can be heard."""
        return stage_at_work(self._at, in_tool=self._tools_running > 0, decided=decided)

    @property
    def at(self) -> Mapping[MarkName, int]:
        """The marks that count so far."""
        return self._at

    def record(self) -> TurnRecord:
        """The record of the marks so far. May be called repeatedly, at any time."""
        origin, origin_ns = self._origin()
        released_ns, at_ear_ns = self._at.get(_M.RELEASED), heard_ns(self._at)
        if _M.EARLY_OPENER in self._at and _M.ANSWER_AUDIBLE not in self._at:
            released_ns = at_ear_ns = None  # of the answer
        end_ns = released_ns if at_ear_ns is None else at_ear_ns
        spans = (*stage_spans(self._at), *self._tool_spans)
        path: tuple[Span, ...] = ()
        cut_in = _M.CUT_IN in self._at and released_ns is not None
        withdrawn = _M.WITHDRAWN in self._at and released_ns is None
        paced_ns = 0
        typed = origin is Origin.REPLY_REQUESTED
        if origin_ns is not None and end_ns is not None:
            cut_in = cut_in or (end_ns < origin_ns and not typed)
        if origin_ns is not None and end_ns is not None and not cut_in:
            path = critical_path(
                origin_ns,
                end_ns,
                spans,
                first_gap=Stage.LLM_PREFILL if typed else Stage.CAPTURE,
                last_gap=Stage.PACING,
            )
            paced_ns = self._paced_ns(origin_ns, end_ns)
        actions = [self._actions[each] for each in Action if each in self._actions]
        started_ns = min(self._at.values(), default=0) if origin_ns is None else origin_ns
        in_order = sorted(self._at.items(), key=lambda item: (item[1], _PLACES[item[0]]))
        return TurnRecord(
            turn=self.turn,
            origin=origin,
            stages=stage_times(spans, path),
            e2e_server_ns=None if cut_in else _elapsed_ns(origin_ns, released_ns),
            e2e_ear_ns=None if cut_in else _elapsed_ns(origin_ns, at_ear_ns),
            answered=released_ns is not None,
            cut_in=cut_in,
            interrupted=_M.INTERRUPTED in self._at and not (cut_in or withdrawn),
            reopened=_M.REOPENED in self._at,
            withdrawn=withdrawn,
            incomplete=self._flaws(origin),
            wasted_ns=self._wasted_ns,
            wasted_prompt_tokens=self._wasted_prompt_tokens,
            wasted_output_tokens=self._wasted_output_tokens,
            spans=relative(spans, origin_ns),
            path=relative(path, origin_ns),
            paced_ns=paced_ns,
            opener=_M.OPENER in self._at,
            asked=_M.ASKED in self._at,
            speech_ns=_elapsed_ns(
                self._at.get(_M.SPEECH_STARTED), self._at.get(_M.CALLER_LAST_VOICED)
            ),
            actions=tuple(each for each in actions if not each.left_out),
            left_out=tuple(each for each in actions if each.left_out),
            marks=tuple((name, at_ns - started_ns) for name, at_ns in in_order),
            started_ns=started_ns if self._at else None,
        )

    def _add_work(self, name: MarkName, at_ns: int) -> None:
        match name:
            case _M.SPEECH_PAUSED:
                if at_ns > self._at.get(_M.ENDPOINT, at_ns):
                    del self._at[_M.ENDPOINT]
                self._at[name] = at_ns
            case _M.ENDPOINT:
                self._at[name] = at_ns
            case _M.ASR_START:
                self._discard(_ASR_PASS, at_ns)
                self._at[name] = at_ns
            case _M.REPLY_REQUESTED:
                self._request(at_ns)
            case _:
                if not self._is_stale(name, at_ns):
                    self._at.setdefault(name, at_ns)

    def _is_stale(self, name: MarkName, at_ns: int) -> bool:
        opener = _M.ASR_START if name is _M.ASR_FINAL else _M.REPLY_REQUESTED
        return self._has_discarded and at_ns < self._at.get(opener, at_ns + 1)

    def _request(self, at_ns: int) -> None:
        if self._first_request_ns is None:
            self._first_request_ns = at_ns
        if self._speaks_before_tool:
            return
        self._discard(_REPLY_ATTEMPT, at_ns)
        self._at[_M.REPLY_REQUESTED] = at_ns

    def _add_structural(self, name: MarkName, at_ns: int) -> None:
        match name:
            case _M.DISCARDED:
                self._wasted_ns += sum(s.end_ns - s.start_ns for s in self._tool_spans)
                self._tool_spans.clear()
                self._tools_running = 0
                self._speaks_before_tool = False
                if not _has_newer_pass(self._at):
                    self._discard(_ASR_PASS, at_ns)
                self._discard(_REPLY_ATTEMPT, at_ns)
            case _M.TOOL_START:
                if not self._tools_running:
                    self._tool_start_ns = at_ns
                    self._close_pass_before_tool(at_ns)
                self._tools_running += 1
            case _M.TOOL_DONE if self._tools_running:
                self._tools_running -= 1
                if not self._tools_running:
                    self._keep(Span(Stage.TOOL, self._tool_start_ns, at_ns))

    def _close_pass_before_tool(self, at_ns: int) -> None:
        """The pass that called the tool counts; the next request is not a second attempt."""
        if _M.FIRST_PIECE in self._at:
            self._speaks_before_tool = True
            return
        requested_ns = self._at.pop(_M.REPLY_REQUESTED, None)
        token_ns = self._at.pop(_M.LLM_FIRST_TOKEN, None)
        if requested_ns is not None:
            self._keep(
                Span(Stage.LLM_PREFILL, requested_ns, at_ns if token_ns is None else token_ns)
            )
        if token_ns is not None:
            self._keep(Span(Stage.LLM_CLAUSE, token_ns, at_ns))

    def _keep(self, span: Span) -> None:
        if len(self._tool_spans) >= MAX_TOOL_SPANS:
            self._lost_tool_spans = True
        elif span.start_ns <= span.end_ns:
            self._tool_spans.append(span)

    def _discard(self, names: tuple[MarkName, ...], at_ns: int) -> None:
        """Drop an attempt and add its work to the wasted time; work without an end ran until
        now."""
        for _, start, end in WORK:
            if start in names and (start_ns := self._at.get(start)) is not None:
                self._wasted_ns += max(0, self._at.get(end, at_ns) - start_ns)
        for name in names:
            if self._at.pop(name, None) is not None:
                self._has_discarded = True
        if names is _REPLY_ATTEMPT:
            self._actions.pop(Action.SHORT_CLAUSE, None)

    def _origin(self) -> tuple[Origin, int | None]:
        if _M.GREETING in self._at:
            return Origin.GREETING, None
        if (voiced_ns := self._at.get(_M.CALLER_LAST_VOICED)) is not None:
            return Origin.CALLER_LAST_VOICED, voiced_ns
        if self._first_request_ns is None or any(name in self._at for name in _SPOKEN):
            return Origin.UNKNOWN, None
        return Origin.REPLY_REQUESTED, self._first_request_ns

    def _paced_ns(self, origin_ns: int, end_ns: int) -> int:
        """The part of the time between these two in which the reply was held back on purpose."""
        start_ns, until_ns = self._at.get(_M.PACE_START), self._at.get(_M.PACE_END)
        if start_ns is None or until_ns is None:
            return 0
        return max(0, min(until_ns, end_ns) - max(start_ns, origin_ns))

    def _flaws(self, origin: Origin) -> tuple[str, ...]:
        needed: tuple[MarkName, ...] = (*_NEEDED_SPOKEN, *_NEEDED)
        if origin in (Origin.REPLY_REQUESTED, Origin.GREETING):
            needed = _NEEDED if origin is Origin.REPLY_REQUESTED else ()
        at = self._at
        if _M.OPENER in at:
            needed = tuple(name for name in needed if name not in _NEEDED or name in _NEEDED_OPENED)
        if self._tool_spans:
            needed = tuple(name for name in needed if name is not _M.REPLY_REQUESTED)
        flaws = [f"no {name}" for name in needed if name not in at]
        flaws += [
            f"{later} before {earlier}"
            for earlier, later in _ORDERED
            if earlier in at and later in at and at[later] < at[earlier]
        ]
        flaws += doubts(at)
        if self._lost_tool_spans:
            flaws.append(f"more than {MAX_TOOL_SPANS} spans of tool rounds")
        return tuple(flaws)


def _has_newer_pass(at: Mapping[MarkName, int]) -> bool:
    """True where a newer recognizer pass began after the reply was requested: its words are why
    the reply is discarded, and the next reply answers them."""
    requested_ns, pass_ns = at.get(_M.REPLY_REQUESTED), at.get(_M.ASR_START)
    return requested_ns is not None and pass_ns is not None and pass_ns > requested_ns


def records_of(marks: Iterable[Mark]) -> tuple[TurnRecord, ...]:
    """The records of a session's turns, in the order of their numbers."""
    ledgers: dict[TurnId, TurnLedger] = {}
    for mark in marks:
        if mark.turn not in ledgers:
            ledgers[mark.turn] = TurnLedger(mark.turn)
        ledgers[mark.turn].add(mark)
    return tuple(ledgers[turn].record() for turn in sorted(ledgers))


def _elapsed_ns(origin_ns: int | None, end_ns: int | None) -> int | None:
    if origin_ns is None or end_ns is None or end_ns < origin_ns:
        return None
    return end_ns - origin_ns
