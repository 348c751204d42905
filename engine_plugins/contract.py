"""Running a contract: a list of named checks, each of which passes or says what is wrong.

It needs no test framework, so that an engine's author can run it from any, or by
`halfsec check-plugin`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .discovery import said


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of one check."""

    check: str
    """What must hold."""
    problem: str = ""
    """What is wrong instead; empty: nothing."""


class ContractError(AssertionError):
    """An engine that breaks its contract. The message has a line for each broken check."""

    def __init__(self, results: Iterable[CheckResult]) -> None:
        self.broken = tuple(result for result in results if result.problem)
        super().__init__("\n".join(f"{each.check}: {each.problem}" for each in self.broken))


class BrokenPromiseError(Exception):
    """What a check raises where the engine is at fault."""


def require(condition: object, problem: str) -> None:
    """Raise BrokenPromiseError unless the condition is true."""
    if not condition:
        raise BrokenPromiseError(problem)


def run_checks(checks: Iterable[tuple[str, Callable[[], None]]]) -> Iterator[CheckResult]:
    """Run checks one by one. What a check raises is its problem; the others are run all the
    same."""
    for name, check in checks:
        try:
            check()
        except BrokenPromiseError as error:
            yield CheckResult(name, str(error))
        except (Exception, SystemExit) as error:
            yield CheckResult(name, said(error))
        else:
            yield CheckResult(name)


def raise_broken(results: Iterable[CheckResult]) -> None:
    """Raise ContractError where a check has failed."""
    done = list(results)
    if any(result.problem for result in done):
        raise ContractError(done)
