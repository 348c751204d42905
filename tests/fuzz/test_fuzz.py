"""Every target reads its seeds, its committed corpus and some hundred inputs made from them; the
runner finds each kind of fault.
"""

import importlib
import random
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz import corpus
from tests.fuzz.__main__ import fuzz, main, seconds_of_each
from tests.fuzz.corpus import read_corpus, read_findings
from tests.fuzz.findings import FindingsFolder
from tests.fuzz.keep import keep
from tests.fuzz.memory_growth import MemoryGrowth
from tests.fuzz.target import JsonGrammar, Target, changed_bytes
from tests.fuzz.targets import PLANTED, TARGETS

NUM_CHANGED: Final = 150


def target_of(name: str) -> Target:
    target: Target = importlib.import_module(f"tests.fuzz.targets.{name}").TARGET
    return target


def test_every_module_of_the_folder_is_a_target() -> None:
    folder = Path(__file__).parent / "targets"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules == {*TARGETS, *PLANTED}


@pytest.mark.parametrize("name", TARGETS)
def test_some_hundred_inputs_are_read_or_refused(name: str) -> None:
    target = target_of(name)
    inputs = [*target.seeds(), *read_corpus(name)]
    assert max(map(len, inputs)) <= target.max_bytes
    chance = random.Random(name)
    inputs += [target.changed(chance.choice(inputs), chance) for _ in range(NUM_CHANGED)]
    assert len(set(inputs)) > 100
    for data in inputs:
        target.examine(data)


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_the_same_for_the_same_chance(name: str) -> None:
    target = target_of(name)
    seed = target.seeds()[0]
    first, second = ([target.changed(seed, random.Random(n)) for n in range(9)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 3


def test_changing_values_leaves_the_samples_alone() -> None:
    grammar = JsonGrammar([{"a": {"b": [1]}, "c": [{"d": 2}]}])
    for seed in range(200):
        value = {"a": 1, "c": [[]]}
        for _ in range(5):
            grammar.change(value, random.Random(seed))
    assert grammar.samples == [{"a": {"b": [1]}, "c": [{"d": 2}]}]


def test_changing_bytes_inserts_words() -> None:
    changed = [changed_bytes(b"0123456789", random.Random(n), [b"WORD"]) for n in range(200)]
    assert any(b"WORD" in each for each in changed)
    assert any(len(each) < 10 for each in changed)


def test_a_runs_corpus_and_findings_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    found = tmp_path / "run" / "corpus" / "sound_files"
    found.mkdir(parents=True)
    for name, data in (("seed-0", b"seed"), ("a", b"12"), ("b", b"1"), ("c", b"x" * 20_000)):
        (found / name).write_bytes(data)
    noted = FindingsFolder(tmp_path / "run" / "findings", "sound_files")
    for data in (b"longer", b"short"):  # of the same place: the shorter one stays
        noted.add(data, ValueError("x"))
    noted.add(b"other", TypeError("x"))
    assert keep("sound_files", tmp_path / "run") == (2, 2)
    assert read_corpus("sound_files")[:2] == [b"1", b"12"]
    assert sorted(read_findings("sound_files")) == [b"other", b"short"]
    for path in (tmp_path / "run" / "findings").iterdir():
        path.unlink()
    assert keep("sound_files", tmp_path / "run") == (2, 2)  # earlier findings stay


def test_two_crashes_are_two_findings(tmp_path: Path) -> None:
    noted = FindingsFolder(tmp_path, "sound_files")
    for data in (b"one", b"other", b"one"):
        noted.add_other(data, "crash", "libFuzzer says this much")
    for said in ("exit status 1", "exit status 2"):
        noted.add_other(b"", "crash", said)  # of which no input is left
    found = noted.all()
    assert [each.kind for each in found] == ["crash"] * 4
    assert sorted(each.path.read_bytes() for each in found) == [b"", b"", b"one", b"other"]


def test_memory_is_judged_from_a_tenth_of_a_short_run_on() -> None:
    def grown(growth: MemoryGrowth) -> list[int]:
        """A byte more with each of 100 inputs, of a second each."""
        return [growth.grown_bytes(n, float(n), 1000 + n) for n in range(1, 101)]

    assert grown(MemoryGrowth.of_run(100, 0)) == [0] * 10 + list(range(1, 91))
    assert grown(MemoryGrowth.of_run(-1, 100)) == [0] * 10 + list(range(1, 91))
    assert grown(MemoryGrowth.of_run(10**6, 0, 50)) == [0] * 50 + list(range(1, 51))
    assert grown(MemoryGrowth.of_run(-1, 0)) == [0] * 100


def test_a_short_time_is_no_endless_one() -> None:
    assert seconds_of_each(0.1, 13) == 1
    assert seconds_of_each(60, 13) == 277
    assert seconds_of_each(0, 13) == 0
    with pytest.raises(SystemExit):
        main(["--minutes", "-1"])


@pytest.mark.slow
def test_exceptions_crashes_and_hangs_are_found_and_the_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="there is no atheris for this Python or system")
    result = fuzz(PLANTED[0], tmp_path, inputs=2000, options=["--input-seconds=1"])
    kinds = sorted(finding.partition(":")[0] for finding in result.findings)
    assert kinds == ["ValueError", "crash", "hang"]
    assert "planted_faults.py" in "".join(result.findings)


@pytest.mark.slow
def test_growth_of_memory_is_found(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="there is no atheris for this Python or system")
    options = ["--growth-mib=16", "--settled=300"]
    result = fuzz(PLANTED[1], tmp_path, inputs=2000, options=options)
    assert [finding.partition(":")[0] for finding in result.findings] == ["memory"]
    assert result.inputs > 300


@pytest.mark.slow
def test_coverage_guides_a_run(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="there is no atheris for this Python or system")
    result = fuzz("realtime_events", tmp_path, inputs=3000)
    assert result.findings == []
    assert result.inputs >= 3000
    assert result.corpus > 100  # it did find its way in
    assert result.coverage_edges > 100
