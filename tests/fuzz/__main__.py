"""Fuzz every target, one after another, each in a process of its own.

    python -m tests.fuzz --minutes 60
    python -m tests.fuzz --targets sound_files,gguf_files --inputs 100000

What is kept between runs lies in `build/fuzz/`: the corpus, which grows, and the findings, an input
and a traceback each. Exit status 1 if there are any. `--json FILE` writes the table.
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from latency_budget.account.clock import SystemClock, iso_of, unix_ns
from latency_budget.host import machine
from tests.fuzz.corpus import read_corpus
from tests.fuzz.findings import MEMORY_STATUS, FindingsFolder
from tests.fuzz.targets import TARGETS

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "fuzz"

MAX_DEATHS: Final = 5
"""Processes of one target that may end by a crash, a hang or memory before it is given up."""

MEMORY: Final = Path("/dev/shm")
"""Where the targets' files cost no disk, if the system has it."""

_COVERAGE: Final = re.compile(rb"cov: (\d+) ft: (\d+) corp: (\d+)")
_CLOCK: Final = SystemClock()


@dataclass(slots=True)
class Result:
    """What became of one target."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    coverage_edges: int = 0
    """Lines and branches reached, as libFuzzer counts them; those of the imports included."""
    features: int = 0
    corpus: int = 0
    """Inputs kept for what they reached."""
    findings: list[str] = field(default_factory=list)


def fuzz(
    name: str,
    folder: Path,
    *,
    inputs: int = 0,
    seconds: int = 0,
    seed: int = 1,
    options: Sequence[str] = (),
) -> Result:
    """Run one target until so many inputs, or seconds, are over; 0: no limit. `options`: further
    ones of `child.py`."""
    corpus, findings = folder / "corpus" / name, folder / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(read_corpus(name)):
        (corpus / f"committed-{number}").write_bytes(data)
    result = Result(name)
    noted = FindingsFolder(findings, name)
    for death in range(MAX_DEATHS):
        left, left_s = inputs - result.inputs, round(seconds - result.seconds)
        if (inputs > 0 and left <= 0) or (seconds > 0 and left_s <= 0):
            break
        began_ns = _CLOCK.now_ns()
        count = findings / f"{name}.count"
        count.write_bytes(bytes(8))
        limits = [f"--inputs={left if inputs > 0 else -1}", f"--seconds={max(0, left_s)}"]
        command = [
            *(sys.executable, "-m", "tests.fuzz.child", name, str(corpus), str(findings)),
            *(str(count), *limits, f"--seed={seed + death}", *options),
        ]
        log = findings / f"{name}.log"
        memory = MEMORY if MEMORY.is_dir() else None
        with log.open("wb") as output, tempfile.TemporaryDirectory(dir=memory) as scratch:
            status = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "TMPDIR": scratch},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        result.seconds += (_CLOCK.now_ns() - began_ns) / 1e9
        result.inputs += struct.unpack("<Q", count.read_bytes())[0]
        said = log.read_bytes()
        for edges, features, kept in _COVERAGE.findall(said)[-1:]:
            result.coverage_edges = max(result.coverage_edges, int(edges))
            result.features = max(result.features, int(features))
            result.corpus = int(kept)
        if status == 0:
            break
        if status != MEMORY_STATUS:
            _note_death(noted, findings, name, status, said)
    result.findings = [f"{each.kind}: {each.where} ({each.path.name})" for each in noted.all()]
    return result


def _note_death(noted: FindingsFolder, findings: Path, name: str, status: int, said: bytes) -> None:
    """Keep the input at which a process ended, as libFuzzer left it."""
    kinds = {"timeout": "hang", "crash": "crash", "oom": "memory", "slow-unit": "hang"}
    left = [
        (path, kind) for word, kind in kinds.items() for path in findings.glob(f"{name}.{word}-*")
    ]
    text = said[-4000:].decode(errors="replace")
    for path, kind in left:
        noted.add_other(path.read_bytes(), kind, text)
        path.unlink()
    if not left:
        noted.add_other(b"", "crash", f"exit status {status}\n{text}")


def seconds_of_each(minutes: float, num_targets: int) -> int:
    """Whole seconds of each target, at least one: 0 would be no limit. 0 without `minutes`."""
    return max(1, round(60 * minutes / num_targets)) if minutes > 0 else 0


def table(results: Sequence[Result]) -> str:
    """One line a target."""
    head = f"{'target':<22}{'inputs':>12}{'seconds':>9}{'a second':>10}{'edges':>8}  findings"
    lines = [
        f"{each.target:<22}{each.inputs:>12,}{each.seconds:>9.0f}"
        f"{each.inputs / max(each.seconds, 1e-9):>10.0f}{each.coverage_edges:>8}"
        f"  {len(each.findings)}"
        for each in results
    ]
    total = f"{'all':<22}{sum(each.inputs for each in results):>12,}"
    return "\n".join((head, *lines, total))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz what reads foreign bytes."
    )
    parser.add_argument(
        "--targets", default=",".join(TARGETS), help="separated by commas (all of them)"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="of all targets together")
    parser.add_argument("--inputs", type=int, default=0, help="of each target")
    parser.add_argument("--seed", type=int, default=1, help="of chance (%(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="corpus and findings")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    names = options.targets.split(",")
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no target is called {', '.join(sorted(unknown))}; see --help")
    if options.minutes <= 0 and options.inputs <= 0:
        parser.error("say for how long: --minutes or --inputs")
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed; it has wheels for Linux and Python below 3.14")
    began = iso_of(unix_ns())
    results = []
    for name in names:
        seconds = seconds_of_each(options.minutes, len(names))
        result = fuzz(
            name, options.folder, inputs=options.inputs, seconds=seconds, seed=options.seed
        )
        results.append(result)
        print(table([result]).splitlines()[1], flush=True)
        for finding in result.findings:
            print(f"  {finding}", flush=True)
    print(table(results))
    if options.json:
        written = {
            "bench": "fuzz",
            "machine": machine(),
            "date": began,
            "command": shlex.join(["python", "-m", "tests.fuzz", *arguments]),
            "inputs": sum(each.inputs for each in results),
            "targets": [asdict(each) for each in results],
        }
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    return 1 if any(each.findings for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
