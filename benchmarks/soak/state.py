"""State of a soak on disk, so that it can be resumed: options, samples and visits, line by line."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from agent.errors import BenchError

from .callers import Visit
from .samples import Sample

Json = dict[str, Any]

_OPTIONS: Final = "options.json"
_ENDED: Final = "ended.json"
_LINES: Final = ("samples.jsonl", "visits.jsonl", "rest.jsonl")


class SoakState:
    """A folder with `options.json`, `samples.jsonl`, `visits.jsonl`, `rest.jsonl`, the server's log
    and its home; once the soak has come to its end, also `ended.json`. A line is complete when it
    ends; one that was being written when the soak broke off is ignored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples: list[Sample] = []
        self.visits: list[Visit] = []
        self.rests: list[Sample] = []
        """Samples without a call in progress: two of each part, before the first call and after the
        last."""

    def begin(self, options: Mapping[str, Any]) -> None:
        """Begin a soak in a folder that has none, or one whose server never started. Raises
        BenchError."""
        if self._lines("samples.jsonl"):
            raise BenchError(f"{self.folder} has a soak already: --resume goes on with it.")
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (*_LINES, _ENDED):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / _OPTIONS).write_text(json.dumps(options, indent=1), encoding="utf-8")

    def resume(self) -> Json:
        """Read what there is; returns the options. Raises BenchError."""
        try:
            options: Json = json.loads((self.folder / _OPTIONS).read_text("utf-8"))
            self.samples = [Sample(**fields) for fields in self._lines("samples.jsonl")]
            self.visits = [Visit(**fields) for fields in self._lines("visits.jsonl")]
            self.rests = [Sample(**fields) for fields in self._lines("rest.jsonl")]
        except (OSError, ValueError, TypeError) as error:
            raise BenchError(f"{self.folder} has no soak that can be resumed: {error}") from None
        return options

    def end(self, minutes: float) -> None:
        """Note that the soak has come to its end, after so many minutes in all."""
        text = json.dumps({"minutes": minutes})
        (self.folder / _ENDED).write_text(text, encoding="utf-8")

    def has_ended(self, minutes: float) -> bool:
        """True for a soak that came to its end, and was to be no longer than that."""
        try:
            ended: Json = json.loads((self.folder / _ENDED).read_text("utf-8"))
            return float(ended["minutes"]) >= minutes
        except (OSError, ValueError, KeyError):
            return False

    @property
    def elapsed_s(self) -> float:
        """Time that was sampled."""
        return self.samples[-1].at_s if self.samples else 0.0

    @property
    def part(self) -> int:
        """Number of the newest part; 0 before the first."""
        return max((each[-1].part for each in (self.samples, self.rests) if each), default=0)

    def add_sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        self._append("samples.jsonl", sample.as_json())

    def add_rest(self, sample: Sample) -> None:
        self.rests.append(sample)
        self._append("rest.jsonl", sample.as_json())

    def add_visit(self, visit: Visit) -> None:
        self.visits.append(visit)
        self._append("visits.jsonl", asdict(visit))

    def _append(self, name: str, fields: Json) -> None:
        path = self.folder / name
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":  # the soak broke off within a line
                    file.write(b"\n")
            file.write(json.dumps(fields).encode() + b"\n")

    def _lines(self, name: str) -> list[Json]:
        path = self.folder / name
        found = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found
