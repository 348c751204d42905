"""Small tables from the code inside written pages, where a page says `<!-- generate: NAME -->`, and
programs, where it says `<!-- file: PATH -->`."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from agent.turn_taking.end_of_turn_model import EAGERNESS, SILENCE, shipped_score
from latency_budget.account.budget import PROFILES
from latency_budget.account.turn import Stage

_DOCS: Final = Path(__file__).resolve().parents[1]


def filled(text: str) -> str:
    """A page with its tables and programs. Raises KeyError for a table and OSError for a file that
    does not exist."""
    text = re.sub(r"<!-- file: ([\w./]+) -->", lambda found: _program(found[1]), text)
    return re.sub(r"<!-- generate: (\w+) -->", lambda found: "\n".join(_TABLES[found[1]]()), text)


def _program(path: str) -> str:
    """A program of this folder as a block of code."""
    return f"```python\n{(_DOCS / path).read_text(encoding='utf-8').rstrip()}\n```"


def _waits() -> Iterator[str]:
    """Silence that ends a turn, by eagerness and how likely it is over after 300 ms."""
    shares = (0.3, 0.5, 0.7, 0.9, 0.97)
    yield f"| eagerness | {' | '.join(f'{100 * each:.0f} %' for each in shares)} |"
    yield f"| --- |{' --- |' * len(shares)}"
    score = shipped_score()
    weight = score.weights["sound, message_end"][SILENCE]
    least = [0.0] * len(shares)  # the more patient never waits less
    for eagerness in EAGERNESS:
        release = score.releases[eagerness]
        waits = [release.silence_ms(math.log(each / (1 - each)), weight) for each in shares]
        least = list(map(max, least, waits))
        yield f"| `{eagerness}` | {' | '.join(f'{ms:.0f} ms' for ms in least)} |"


def _budgets() -> Iterator[str]:
    """Allowances of each profile, ms."""
    yield f"| stage | {' | '.join(f'`{name}`' for name in PROFILES)} |"
    yield f"| --- |{' --- |' * len(PROFILES)}"
    for stage in Stage:
        cells = " | ".join(str(budget.allowance_ms(stage)) for budget in PROFILES.values())
        yield f"| `{stage.value}` | {cells} |"
    totals = " | ".join(f"**{budget.total_ms}**" for budget in PROFILES.values())
    yield f"| total | {totals} |"


_TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {"waits": _waits, "budgets": _budgets}
