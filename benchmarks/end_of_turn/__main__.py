"""`python -m benchmarks.end_of_turn OUT`: data, features and fit of the end of turn, in one.

    git clone --bare https://github.com/jimbozhang/speechocean762
    git clone --bare https://github.com/Sakshee5/alphanumeric-audio-dataset
    python -m benchmarks.end_of_turn OUT --speechocean762 speechocean762.git \\
        --alphanumeric alphanumeric-audio-dataset.git --sounds DIR TEXTS

It runs, one after the other, each as its own command would: `turn_data` (recordings become turns),
`turn_pauses` (each pause with its words and its sound), the same without words for more turns of
the same speakers, `noisy_pauses` (all of them again, in noise), `message_ends` (the language
model's opinion on the words), `fit`. All results lie in OUT. A step whose result is there already
is left out or goes on where it stopped, so the same command finishes a run that was interrupted.

`--turns N` takes so many of the turns, chosen by `--seed` from their sorted names; OUT/names.txt
has them. `--names FILE` takes those of such a list, so that a subset can be handed on.

`--write` writes what the service loads; `--shipped` fits nothing and judges what it loads, on the
half of the speakers that no fit hears.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from asr.errors import AudioError

from . import fit, message_ends, noisy_pauses, turn_data, turn_pauses

MORE_PER_SPEAKER: Final = 20
"""Recordings of each speaker that the head of the turn model is fitted on: all that the corpus has.
With 5 the area under the curve of unseen halting readers is 0.02 smaller."""

PRESETS: Final = ("embedded", "embedded-0.5b")
"""Presets whose language models the weights are fitted on."""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One command."""

    name: str
    run: Callable[[list[str]], int]
    arguments: tuple[str, ...]
    result: Path | None = None
    """Where this file exists, there is nothing to do."""


def steps(options: argparse.Namespace) -> list[PipelineStep]:
    """The commands in their order."""
    out: Path = options.out
    turns, pauses = out / "turns", out / "pauses.jsonl"
    ends = {name: str(out / f"message_ends-{name}.json") for name in options.preset or PRESETS}
    corpora = [*_given("--speechocean762", options.speechocean762)]
    sources = [*corpora, *_given("--alphanumeric", options.alphanumeric)]
    for folder, texts in options.sounds:
        sources += ["--sounds", folder, texts]
    seed = ["--seed", str(options.seed)]
    names = ["--names", str(out / "names.txt")]
    found = [
        PipelineStep("turns", turn_data.main, (str(turns), *sources, *seed), turns / "card.json"),
        PipelineStep("pauses", turn_pauses.main, (str(turns), str(pauses), *names)),
    ]
    fitted = [str(pauses), "--json", str(out / "figures.json")]
    for path in ends.values():
        fitted += ["--message-ends", path]
    found.append(_in_noise(turns, pauses, out / "noisy.jsonl"))
    fitted += ["--more", str(out / "noisy.jsonl")]
    if options.shipped:
        fitted.append("--shipped")
    elif corpora:
        more, more_pauses = out / "more", out / "more.jsonl"
        many = (*corpora, "--per-speaker", str(MORE_PER_SPEAKER), *seed)
        found += [
            PipelineStep("more turns", turn_data.main, (str(more), *many), more / "card.json"),
            PipelineStep(
                "their pauses",
                turn_pauses.main,
                (str(more), str(more_pauses), "--no-words", "--half", "a"),
            ),
        ]
        found.append(_in_noise(more, more_pauses, out / "noisy_more.jsonl"))
        fitted += ["--more", str(more_pauses), "--more", str(out / "noisy_more.jsonl")]
    if options.write:
        fitted.append("--write")
    for name, path in ends.items():
        arguments = (path, str(pauses), "--preset", name)
        found.append(PipelineStep("language model", message_ends.main, arguments))
    found.append(PipelineStep("fit", fit.main, tuple(fitted)))
    return found


def _in_noise(turns: Path, pauses: Path, found: Path) -> PipelineStep:
    arguments = (str(turns), str(pauses), str(found))
    return PipelineStep("in noise", noisy_pauses.main, arguments)


def _given(name: str, folder: Path | None) -> list[str]:
    return [] if folder is None else [name, str(folder)]


def chosen_names(names: Sequence[str], count: int | None, seed: int) -> list[str]:
    """So many of the names, sorted; the same for the same names and seed, in whatever order."""
    ordered = sorted(names)
    if count is None or count >= len(ordered):
        return ordered
    return sorted(random.Random(seed).sample(ordered, count))


def _write_names(options: argparse.Namespace) -> None:
    """Write the list of the turns that are used. Raises AudioError."""
    if options.names is not None:
        names = options.names.read_text(encoding="utf-8").splitlines()
    else:
        made = [turn.file for turn in turn_data.read_turns(options.out / "turns")]
        names = chosen_names(made, options.turns, options.seed)
    (options.out / "names.txt").write_text("".join(f"{each}\n" for each in names), "utf-8")


def main(argv: list[str] | None = None) -> int:
    """Run the steps. Returns 0, or the exit status of the step that failed."""
    options = _parser().parse_args(argv)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for step in steps(options):
            if step.result is not None and step.result.exists():
                continue
            if step.name == "pauses":
                _write_names(options)
            print(f"{step.name}: {' '.join(step.arguments)}", file=sys.stderr, flush=True)
            status = step.run(list(step.arguments))
            if status:
                return status
    except (AudioError, OSError) as error:
        print(f"end_of_turn: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_of_turn", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("out", type=Path, help="folder of all results")
    add("--speechocean762", type=Path, metavar="DIR", help="the corpus: files or git repository")
    add("--alphanumeric", type=Path, metavar="DIR", help="alphanumeric-audio-dataset, the same")
    add("--sounds", nargs=2, action="append", default=[], metavar=("DIR", "TEXTS"),
        help="recordings of one voice, see turn_data; may be repeated")  # fmt: skip
    add("--turns", type=int, metavar="N", help="use N of the turns; all by default")
    add("--names", type=Path, metavar="FILE", help="use the turns of this list, a file name a line")
    add("--seed", type=int, default=turn_data.SEED, help="of data and choice (%(default)s)")
    add("--preset", action="append", metavar="NAME",
        help=f"ask its language model; may be repeated ({', '.join(PRESETS)})")  # fmt: skip
    add("--shipped", action="store_true", help="fit nothing: judge what the service loads")
    add("--write", action="store_true", help="write the models that the service loads")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
