"""Harness: jobs run one after another; a failed job leaves the others intact.

Time on a rented machine is limited. So a job yields its figures one by one, all results are saved
after each, and the jobs left at the time limit are reported as not begun. A job that raises loses
only its further figures; after one that loses the GPU no other job is begun.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import Any

from latency_budget.account.clock import Clock
from llm_engine.cuda.device import Fault, fault_of

from .figures import Figure

Measure = Callable[[], Iterator[Figure]]


@dataclass(frozen=True, slots=True)
class Job:
    """Named measurement."""

    name: str
    measure: Measure


@dataclass(slots=True)
class JobResult:
    """Result of a job."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    seconds: float = 0.0
    problem: str = ""
    """Reason why figures are missing; empty if none is."""

    def as_data(self) -> dict[str, Any]:
        found: dict[str, Any] = {"seconds": round(self.seconds, 2)}
        if self.problem:
            found["problem"] = self.problem
        return found | {"figures": [figure.as_data() for figure in self.figures]}


@dataclass(frozen=True, slots=True)
class RunContext:
    """Clock, time limit and callbacks of a run of jobs."""

    clock: Clock
    limit_s: float | None
    """Time limit in s: no figure is begun after it. None: no limit."""
    mark: Callable[[str], AbstractContextManager[None]]
    """Context of each job, which names it in a profiler's timeline."""
    recover: Callable[[], None]
    """Called after a job that raised."""
    on_change: Callable[[Sequence[JobResult]], None]
    """Called after each figure and each job."""


def run_jobs(jobs: Sequence[Job], around: RunContext) -> list[JobResult]:
    """Run all jobs in order. Raises only what the callbacks raise."""
    start_ns = around.clock.now_ns()
    records: list[JobResult] = []
    lost = ""
    for job in jobs:
        record = JobResult(job.name)
        records.append(record)
        if lost or _is_over(start_ns, around):
            record.problem = lost or f"not begun: {around.limit_s:.0f} s were over"
            around.on_change(records)
            continue
        job_ns = around.clock.now_ns()
        try:
            with around.mark(job.name), closing(_checked(job)) as figures:
                for figure in figures:
                    record.figures.append(figure)
                    record.seconds = (around.clock.now_ns() - job_ns) / 1e9
                    around.on_change(records)
                    if _is_over(start_ns, around):
                        record.problem = f"cut short: {around.limit_s:.0f} s were over"
                        break
        except Exception as error:  # the other jobs run
            record.problem = _problem(error)
            if fault_of(error) is Fault.LOST:
                lost = f"not begun: the GPU was lost in {job.name!r}"
            else:
                around.recover()
        record.seconds = (around.clock.now_ns() - job_ns) / 1e9
        around.on_change(records)
    return records


def _checked(job: Job) -> Generator[Figure, None, None]:
    """Wrap the job's iterator in a generator, which can be closed."""
    yield from job.measure()


def _is_over(start_ns: int, around: RunContext) -> bool:
    if around.limit_s is None:
        return False
    return (around.clock.now_ns() - start_ns) / 1e9 >= around.limit_s


def _problem(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}"
