"""Rows of the faults' table: verdicts, JSON and Markdown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .damaged_models import DamagedStart
from .fault_case import Aftermath
from .witness import Observation

SILENCE_S: Final = 2.0
"""Longest silence in s without sound, event or close."""
MAX_HEARD: Final = 6
"""Lines of what was heard that the Markdown table has."""

PASSES: Final = "passes"
FAILS: Final = "FAILS"
NOT_RUN: Final = "not run"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Resident memory in MB of the server's process around a fault; None: the process was gone, or
    the platform does not say."""

    before: float | None = None
    """When the fault struck."""
    after: float | None = None
    """When the next turn was answered, or the caller had given up."""
    settled: float | None = None
    """`settled_s` later, without a call."""
    settled_s: float = 0.0
    returned: float | None = None
    """Where a stage hung: when the call that hung had come back as well, and what it held could be
    released. A call that never comes back never reaches this."""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One row of the table."""

    fault: str
    verdict: str
    why: list[str] = field(default_factory=list)
    """Reasons of a verdict other than a pass."""
    heard: list[str] = field(default_factory=list)
    longest_silence_s: float | None = None
    next_answer_s: float | None = None
    lost: list[str] = field(default_factory=list)
    next_answer: str = ""
    """What the model said in the next answered turn."""
    memory_mb: MemoryFigures = MemoryFigures()

    def as_json(self) -> Json:
        return asdict(self)


def row_of(
    fault: str,
    found: Observation,
    *,
    keeps_call: bool,
    num_lost: int | None = None,
    aftermath: Aftermath | None = None,
) -> FaultRow:
    """The row of a call around a fault. `num_lost`: turns that the store did not keep; None: not
    known. `aftermath`: what the case itself looked at."""
    looked = Aftermath() if aftermath is None else aftermath
    why: list[str] = []
    lost: list[str] = []
    if found.longest_silence_s > SILENCE_S:
        why.append(f"{found.longest_silence_s:.1f} s without sound, event or close")
    if found.next_answer_s is None:
        why.append("no answer came any more")
    if found.num_unanswered:
        lost.append(f"{found.num_unanswered} turn(s) without an answer")
    if found.num_calls > 1 or found.history_kept is False:
        lost.append("the call" if found.num_calls > 1 else "the call's history")
        if keeps_call:
            why.append("a call was lost whose state is promised to stay")
    if num_lost is None:
        lost.append("the store was not looked at")
    elif num_lost:
        lost.append(f"{num_lost} turn(s) not in the store")
    why += looked.why
    lost += looked.lost
    verdict = FAILS if why else PASSES
    return FaultRow(
        fault,
        verdict,
        why,
        [*found.heard, *looked.seen],
        found.longest_silence_s,
        found.next_answer_s,
        lost,
        found.next_answer,
    )


def row_of_start(found: DamagedStart) -> FaultRow:
    """The row of a start with a damaged model file."""
    why: list[str] = []
    if found.starts and not found.is_repaired:
        why.append("the server starts with the damaged file")
    elif found.starts:
        pass  # it has fetched the model anew
    elif not found.names_model:
        why.append("its log does not name the model")
    if not found.starts_mended:
        why.append("it does not start with the file mended")
    index = "with" if found.has_index else "without"
    started = f"ready after {found.took_s:.0f} s, {'fetched anew' if found.is_repaired else ''}"
    return FaultRow(
        f"damaged at start, {index} a package index: {found.model}",
        FAILS if why else PASSES,
        why,
        [started if found.starts else f"no start after {found.took_s:.0f} s: {found.said}"],
        lost=["no call is taken until the file is whole"] if not found.starts else [],
    )


def markdown(rows: Sequence[FaultRow]) -> str:
    """The table in Markdown."""
    lines = [
        "| fault | what the caller heard | longest silence | next answered turn | lost "
        "| memory, MB: before / after / settled | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        heard = "; ".join(_cell(text) for text in row.heard[-MAX_HEARD:]) or "-"
        verdict = row.verdict if not row.why else f"{row.verdict}: {'; '.join(row.why)}"
        cells = (
            row.fault,
            heard,
            _seconds(row.longest_silence_s),
            _seconds(row.next_answer_s),
            "; ".join(row.lost) or "nothing" if row.verdict != NOT_RUN else "-",
            _memory(row.memory_mb),
            verdict,
        )
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _memory(found: MemoryFigures) -> str:
    """Figures of a row in MB, with the time that the last one took."""
    if found == MemoryFigures():
        return "-"
    shown = [found.before, found.after, found.settled]
    text = " / ".join("-" if each is None else f"{each:.0f}" for each in shown)
    text += f" ({found.settled_s:.0f} s)"
    return text if found.returned is None else f"{text}; hung call back: {found.returned:.0f}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
