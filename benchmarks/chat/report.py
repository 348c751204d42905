"""Figures and tables of held dialogues. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, get_args

from agent.client.simulated_caller.summary import percentiles_ms
from benchmarks.asr.scoring import WordErrors
from benchmarks.statistics import wilson_interval

from .records import DialogueRecord, Interruption

CALLS: Final = "tool calls"
"""Category of single turns with tools: most of them need a call, some must have none."""
RIGHT_CALLS: Final = "right calls"
"""Row of the dialogues of `CALLS` whose calls are right, name and arguments, whatever is said."""


def summary(records: Sequence[DialogueRecord]) -> dict[str, dict[str, Any]]:
    """Passed and held dialogues with the rate's 95 % interval, by category and over "all"; over
    voice also of those of which the recognizer has every word (`heard_right`)."""
    categories = dict.fromkeys(record.category for record in records)
    rows: dict[str, dict[str, Any]] = {}
    for name in (*categories, "all"):
        held = [record for record in records if name in (record.category, "all")]
        rows[name] = _row(held, [record.is_passed for record in held])
        if name == CALLS:
            rows[RIGHT_CALLS] = _row(held, [record.calls_right for record in held])
    return rows


def _row(records: Sequence[DialogueRecord], verdicts: Sequence[bool]) -> dict[str, Any]:
    row = _rate(verdicts)
    if any(turn.spoken is not None for record in records for turn in record.turns):
        pairs = zip(records, verdicts, strict=True)
        row["heard_right"] = _rate([verdict for each, verdict in pairs if not each.is_misheard])
    return row


def _rate(verdicts: Sequence[bool]) -> dict[str, Any]:
    passed, held = sum(verdicts), len(verdicts)
    return {
        "passed": passed,
        "held": held,
        "rate": passed / held if held else 0.0,
        "interval": wilson_interval(passed, held),
    }


def voice_figures(records: Sequence[DialogueRecord]) -> dict[str, Any]:
    """What the calls were like: ms at the ear of turns that were not cut in on, cut-ins,
    interruptions by what became of them, history, and word errors of the recognizer."""
    spoken = [turn.spoken for record in records for turn in record.turns if turn.spoken is not None]
    cut_ins = sum(each.cut_in for each in spoken)
    outcomes = Counter(each.interruption for each in spoken)
    words = WordErrors(sum(e.num_words for e in spoken), sum(e.word_errors for e in spoken))
    return {
        "turns": len(spoken),
        "unanswered": sum(each.ear_ms is None for each in spoken),
        "ear_ms": percentiles_ms(each.ear_ms for each in spoken if not each.cut_in),
        "cut_ins": cut_ins,
        "cut_in_interval": wilson_interval(cut_ins, len(spoken)),
        "interruptions": {name: outcomes[name] for name in get_args(Interruption)},
        "stopped_ms": percentiles_ms(each.stopped_ms for each in spoken),
        "history_checked": sum(record.num_history_checked for record in records),
        "history_problems": sum(len(record.history_problems) for record in records),
        "word_error_rate": words.rate,
        "misheard_dialogues": sum(record.is_misheard for record in records),
    }


def table(model: str, rows: dict[str, dict[str, Any]]) -> str:
    """Format a summary."""
    is_spoken = any("heard_right" in row for row in rows.values())
    title = f"{model:<40}{'passed':>12}{'%':>7}   95 % interval"
    lines = [f"{title:<75}   heard right: passed" if is_spoken else title]
    for name, row in rows.items():
        low, high = row["interval"]
        count = f"{row['passed']} of {row['held']}"
        line = f"{name:<40}{count:>12}{row['rate']:>7.0%}   {low:.0%} to {high:.0%}"
        if "heard_right" in row:
            line = f"{line:<75}   {row['heard_right']['passed']} of {row['heard_right']['held']}"
        lines.append(line)
    return "\n".join(lines)


def voice_table(figures: dict[str, Any]) -> str:
    """Format the figures of the calls."""
    ear, stopped, happened = figures["ear_ms"], figures["stopped_ms"], figures["interruptions"]
    low, high = figures["cut_in_interval"]
    tried = sum(happened.values()) - happened["late"]
    return "\n".join(
        [
            f"{figures['turns']} turns, {figures['unanswered']} without an answer; voice to voice "
            f"at the ear p50 {_ms(ear['p50'])}, p95 {_ms(ear['p95'])}",
            f"{figures['cut_ins']} cut-ins ({low:.0%} to {high:.0%} of the turns)",
            f"{happened['obeyed']} of {tried} barge-ins obeyed, after p50 {_ms(stopped['p50'])}; "
            f"{happened['ended']} answers ended by themselves within a second, "
            f"{happened['ignored']} went on; {happened['late']} were over before",
            f"history of {figures['history_checked']} replies compared with what was heard, "
            f"{figures['history_problems']} differ",
            f"the recognizer's word error rate is {figures['word_error_rate']:.1%}; it misheard "
            f"lines of {figures['misheard_dialogues']} dialogues",
        ]
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def missed_gates(
    rows: dict[str, dict[str, Any]], least: float | None, least_calls: float | None
) -> list[str]:
    """Gates missed, in per cent of all dialogues and of `RIGHT_CALLS`. A category that was not held
    misses its gate."""
    missed = []
    for name, gate in (("all", least), (RIGHT_CALLS, least_calls)):
        if gate is not None:
            rate = 100 * rows[name]["rate"] if name in rows else 0.0
            if rate < gate:
                missed.append(f"{name} {rate:.1f} % < {gate:g} %")
    return missed


def failure(record: DialogueRecord) -> str:
    """Transcript of a dialogue that failed, with what is wrong."""
    lines = [f"--- {record.id}"]
    for turn in record.turns:
        lines.append(f"caller: {turn.caller}")
        if turn.spoken is not None and turn.spoken.word_errors:
            lines.append(f" heard: {turn.spoken.heard}")
        lines.append(f"agent:  {turn.reply}")
        lines += [f"        calls {name} {dict(given)}" for name, given in turn.calls]
        lines += [f"    !!  {problem}" for problem in turn.problems]
    found = [record.state_problem, *record.history_problems, *record.errors]
    lines += [f"    !!  {problem}" for problem in found if problem]
    return "\n".join(lines)


def progress(record: DialogueRecord) -> str:
    """One line about a held dialogue: the verdict; over voice, word errors and times at the ear."""
    line = f"{record.id}: {'passed' if record.is_passed else 'failed'}"
    spoken = [turn.spoken for turn in record.turns if turn.spoken is not None]
    if not spoken:
        return line
    rates = " ".join(f"{WordErrors(e.num_words, e.word_errors).rate:.0%}" for e in spoken)
    times = " ".join(_ms(each.ear_ms) for each in spoken)
    return f"{line}; word errors {rates}; at the ear {times}"
