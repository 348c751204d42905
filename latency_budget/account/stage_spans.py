"""Stage spans: the work between the marks of a turn, and the time of each stage.

One rule on clocks: `first_piece` and `tts_start` are made by two threads. Where they appear in the
wrong order the speech starts at the later one, or an inversion of microseconds would hide the
clause behind it from the critical path.

Where the turn was decided to be over as soon as its words were there, the silence had been long
enough before: the caller waited for the recognizer, and the wait for the end of the turn ends where
the pass began.
"""

from collections.abc import Iterable, Mapping

from .critical_path import busy_ns
from .marks import MarkName
from .playback_time import heard_ns
from .turn import Span, Stage
from .turn_record import StageTime

AT_ONCE_NS = 2_000_000
"""An endpoint that follows the words so soon was decided by their coming. Another thread's work may
lie between the two; the silence is looked at again only every 32 ms."""

_M = MarkName
WORK = (
    (Stage.ASR, _M.ASR_START, _M.ASR_FINAL),
    (Stage.LLM_PREFILL, _M.REPLY_REQUESTED, _M.LLM_FIRST_TOKEN),
    (Stage.LLM_CLAUSE, _M.LLM_FIRST_TOKEN, _M.FIRST_PIECE),
    (Stage.TTS, _M.TTS_START, _M.FIRST_AUDIBLE_READY),
)


def stage_spans(at: Mapping[MarkName, int]) -> tuple[Span, ...]:
    """The spans of work between the marks that count, on their clock, in the order of the stages;
    without tools."""
    received_ns, paused_ns = at.get(_M.AUDIO_RECEIVED), at.get(_M.SPEECH_PAUSED)
    ready_ns, endpoint_ns = at.get(_M.FIRST_AUDIBLE_READY), at.get(_M.ENDPOINT)
    opener_ns = at.get(_M.OPENER)
    listening_ns = received_ns if paused_ns is None else paused_ns
    patient_ns = at[_M.ASR_START] if _words_decided(at) else endpoint_ns
    tts_start_ns = at.get(_M.TTS_START)
    if tts_start_ns is not None:
        tts_start_ns = max(tts_start_ns, at.get(_M.FIRST_PIECE, tts_start_ns))
    releasable_ns = ready_ns
    if ready_ns is not None and endpoint_ns is not None:
        releasable_ns = max(ready_ns, endpoint_ns)
    stretches = [
        (Stage.CAPTURE, at.get(_M.CALLER_LAST_VOICED), received_ns),
        (Stage.ENDPOINT, received_ns, paused_ns),
        (Stage.ENDPOINT, listening_ns, patient_ns),
        *((stage, at.get(start), at.get(end, opener_ns)) for stage, start, end in WORK[:3]),
        (Stage.TTS, tts_start_ns, ready_ns),
        (Stage.PACING, releasable_ns, at.get(_M.RELEASED)),
        (Stage.TRANSPORT, at.get(_M.RELEASED), heard_ns(at)),
    ]
    spans = [
        Span(stage, start_ns, end_ns)
        for stage, start_ns, end_ns in stretches
        if start_ns is not None and end_ns is not None and start_ns < end_ns
    ]
    return tuple(spans)


def stage_at_work(at: Mapping[MarkName, int], *, in_tool: bool, decided: bool) -> Stage | None:
    """The stage that an answer waits for, by the marks that count so far. `decided`: the turn is
    known to be over. None once the answer can be heard, and before any work began."""
    if _M.RELEASED in at:
        return None
    for applies, stage in (
        (in_tool, Stage.TOOL),
        (_M.FIRST_AUDIBLE_READY in at, Stage.PACING if decided else Stage.ENDPOINT),
        (_M.FIRST_PIECE in at, Stage.TTS),
        (_M.LLM_FIRST_TOKEN in at, Stage.LLM_CLAUSE),
        (_M.REPLY_REQUESTED in at, Stage.LLM_PREFILL),
        (not decided, Stage.ENDPOINT),
    ):
        if applies:
            return stage
    return None


def _words_decided(at: Mapping[MarkName, int]) -> bool:
    """True where the silence had been long enough, and only the words were missing."""
    start_ns, final_ns, endpoint_ns = (
        at.get(name) for name in (_M.ASR_START, _M.ASR_FINAL, _M.ENDPOINT)
    )
    if start_ns is None or final_ns is None or endpoint_ns is None:
        return False
    return start_ns <= final_ns <= endpoint_ns <= final_ns + AT_ONCE_NS


def relative(spans: Iterable[Span], origin_ns: int | None) -> tuple[Span, ...]:
    """The spans on the turn's own clock, which starts at its origin; empty where that is
    unknown."""
    return () if origin_ns is None else tuple(span.shifted(-origin_ns) for span in spans)


def stage_times(spans: Iterable[Span], path: Iterable[Span]) -> dict[Stage, StageTime]:
    """Spent and exposed time of every stage."""
    work: dict[Stage, list[Span]] = {stage: [] for stage in Stage}
    for span in spans:
        work[span.stage].append(span)
    exposed_ns = dict.fromkeys(Stage, 0)
    for span in path:
        exposed_ns[span.stage] += span.end_ns - span.start_ns
    return {stage: StageTime(busy_ns(work[stage]), exposed_ns[stage]) for stage in Stage}
