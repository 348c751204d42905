"""Critical path of a turn: attributes every nanosecond of the wait to one stage.

Stages overlap, so the times they spent say little about what a caller waited for. The exposed time
of a stage is its part of the critical path, found by walking backwards from the end (the first
audible sample released, or heard if that is known) to the origin (the caller's last voiced frame):

1. Take the span that ends last at or before the cursor. It was the last thing to finish before
   the next could go on, so it is what the next waited for. Charge it from its start to its end and
   move the cursor to its start. Of two that end together, take the later one in the order of
   `Stage`, then the one that started later.
2. Where that span ends before the cursor, the gap is charged to the stage that follows the gap:
   nothing it could have waited for was running, so it queued. A gap before the very end has no
   span after it and goes to `last_gap`.
3. A span still running at the cursor cannot have been waited for, and is passed over.
4. Stop at the origin. A span that began before it is charged from the origin only: work done while
   the caller was speaking is free. What is left when no span remains goes to `first_gap`.

Every step moves the cursor from where the last one left it, so the pieces are contiguous and their
integer lengths add up to end minus origin exactly, whatever spans are given.

Why not split an instant among the stages active in it: the sum would be right, but a stage that
runs beside the critical one would look worth improving, and improving it would gain nothing.
"""

from collections.abc import Iterable

from .turn import Span, Stage

_ORDER = {stage: position for position, stage in enumerate(Stage)}


def critical_path(
    origin_ns: int,
    end_ns: int,
    spans: Iterable[Span],
    *,
    first_gap: Stage = Stage.CAPTURE,
    last_gap: Stage = Stage.PACING,
) -> tuple[Span, ...]:
    """Charge every nanosecond from origin to end to one stage, by the rule of this module.

    Spans may overlap, nest, lie outside, be empty or reversed (those are ignored). Returns
    contiguous spans in order of time that cover origin..end; none when the end is not after the
    origin. O(n log n).
    """
    usable = (s for s in spans if s.start_ns < s.end_ns and origin_ns < s.end_ns <= end_ns)
    latest_first = sorted(
        usable, key=lambda s: (s.end_ns, _ORDER[s.stage], s.start_ns), reverse=True
    )
    path: list[Span] = []
    cursor_ns = end_ns
    follower = last_gap
    for span in latest_first:
        if cursor_ns <= origin_ns:
            break
        if span.end_ns > cursor_ns:
            continue
        if span.end_ns < cursor_ns:
            path.append(Span(follower, span.end_ns, cursor_ns))
        start_ns = max(span.start_ns, origin_ns)
        path.append(Span(span.stage, start_ns, span.end_ns))
        cursor_ns = start_ns
        follower = span.stage
    if cursor_ns > origin_ns:
        path.append(Span(first_gap, origin_ns, cursor_ns))
    path.reverse()
    return tuple(path)


def busy_ns(spans: Iterable[Span]) -> int:
    """Length of the union of the spans: time in which at least one of them ran."""
    total_ns = 0
    reached_ns: int | None = None
    for span in sorted(spans, key=lambda s: s.start_ns):
        start_ns = span.start_ns if reached_ns is None else max(span.start_ns, reached_ns)
        if span.end_ns > start_ns:
            total_ns += span.end_ns - start_ns
            reached_ns = span.end_ns
    return total_ns
