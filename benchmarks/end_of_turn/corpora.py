"""Public recordings of many speakers, read from a folder or a git repository of the corpus.

Two corpora are known, each with the layout and the licence that its own files state:

* *speechocean762*: 250 speakers, half of them children, read English sentences of 1 to 20 words
  that is not their first language, with the pauses of halting readers. `train/` and `test/` have
  125 speakers each, and become half "a" and "b".
* *alphanumeric-audio-dataset*: some 70 speakers, each of whom says a name, a telephone number and
  an address. Halves by the speaker's id.

A corpus is a folder of its files, or a git repository, with or without a work tree, of which the
newest commit is read (`git cat-file --batch`): a mirror need not be checked out. Files that the
repository lists but does not hold are left out.
"""

import csv
import io
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from asr.errors import AudioError

SPEECHOCEAN: Final = "speechocean762"
ALPHANUMERIC: Final = "alphanumeric-audio-dataset"

LICENCES: Final = {
    SPEECHOCEAN: (
        "README.md",
        "free download for both commercial and non-commercial purposes",
    ),
    ALPHANUMERIC: ("LICENSE", "MIT License"),
}
"""File of a corpus, and the words in it by which its licence is known."""


@dataclass(frozen=True, slots=True)
class CorpusRecording:
    """One recording of a corpus, not read yet."""

    corpus: str
    speaker: str
    """Speaker's id, unique within the corpus."""
    half: str
    """"a": to fit on. "b": held back. No speaker is in both."""
    name: str
    path: str
    """Path inside the corpus."""
    text: str


class CorpusFiles(Protocol):
    """Files of a corpus, wherever they lie."""

    def read(self, path: str) -> bytes:
        """Content of a file. Raises AudioError where it is not there."""
        ...

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        """Contents in order; None for a file that is not there."""
        ...


class FolderFiles:
    """Files of a folder: `CorpusFiles`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str) -> bytes:
        try:
            return (self._folder / path).read_bytes()
        except OSError as error:
            raise AudioError(f"{self._folder / path}: not readable: {error}") from error

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        for path in paths:
            content = None
            with suppress(AudioError):
                content = self.read(path)
            yield content


class GitFiles:
    """Files of a git repository's newest commit: `CorpusFiles`."""

    def __init__(self, folder: Path) -> None:
        """Raises AudioError where there is no repository with a commit."""
        self._folder = folder
        try:
            subprocess.run(
                ["git", "-C", str(folder), "rev-parse", "-q", "--verify", "HEAD"],
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise AudioError(
                f"{folder}: neither the corpus nor a git repository of it: {error}"
            ) from error

    def read(self, path: str) -> bytes:
        (content,) = self.read_all([path])
        if content is None:
            raise AudioError(f"{self._folder}: HEAD has no file {path}")
        return content

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        process = subprocess.Popen(
            ["git", "-C", str(self._folder), "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            for path in paths:
                process.stdin.write(f"HEAD:{path}\n".encode())
                process.stdin.flush()
                head = process.stdout.readline().split()
                if head[-1] == b"missing":
                    yield None
                    continue
                content = process.stdout.read(int(head[-1]))
                process.stdout.read(1)
                yield content
            process.stdin.close()


def files_of(folder: Path, corpus: str) -> CorpusFiles:
    """Files of a known corpus in `folder`. Raises AudioError where the folder is not that corpus,
    or its licence is not the known one."""
    if not folder.is_dir():
        raise AudioError(f"{folder}: no such folder; get the corpus first, see turn_data's help")
    name, words = LICENCES[corpus]
    files: CorpusFiles = FolderFiles(folder) if (folder / name).is_file() else GitFiles(folder)
    text = files.read(name).decode("utf-8", "replace")
    if words not in text:
        raise AudioError(
            f"{folder}: {name} does not state the licence under which {corpus} is known "
            f'("{words}"); check its terms before you use it'
        )
    return files


def speechocean(files: CorpusFiles, per_speaker: int) -> list[CorpusRecording]:
    """Recordings of speechocean762: of each speaker the longest texts, one in three of them drawn
    from the others, so that short answers and digits are there too."""
    found = []
    for part, half in (("train", "a"), ("test", "b")):
        texts = _table(files.read(f"{part}/text"))
        places = _table(files.read(f"{part}/wav.scp"))
        speakers: dict[str, list[str]] = {}
        for name, speaker in _table(files.read(f"{part}/utt2spk")).items():
            if name in texts and name in places:
                speakers.setdefault(speaker, []).append(name)
        for speaker, names in sorted(speakers.items()):
            names.sort(key=lambda name: (-len(texts[name].split()), name))
            rng = np.random.default_rng(zlib.crc32(speaker.encode()))
            rest = names[per_speaker:]
            chosen = [
                rest[int(rng.integers(len(rest)))] if rest and rng.random() < 1 / 3 else name
                for name in names[:per_speaker]
            ]
            found += [
                CorpusRecording(SPEECHOCEAN, speaker, half, name, places[name], texts[name])
                for name in dict.fromkeys(chosen)
            ]
    return found


def alphanumeric(files: CorpusFiles) -> list[CorpusRecording]:
    """All recordings of the alphanumeric data set."""
    rows = csv.DictReader(io.StringIO(files.read("metadata.csv").decode("utf-8-sig")))
    found = []
    for row in rows:
        try:
            speaker, path = row["Response_ID"], row["file_name"]
            kind = path.split("/")[-2]
            text = row[{"Names": "Name", "Numbers": "Number", "Addresses": "Address"}[kind]]
        except (KeyError, IndexError) as error:
            raise AudioError(f"metadata.csv is not that of {ALPHANUMERIC}: {error}") from error
        half = "ab"[zlib.crc32(speaker.encode()) % 2]
        name = f"{kind.lower()}-{speaker}"
        found.append(CorpusRecording(ALPHANUMERIC, speaker, half, name, path, text))
    return found


def _table(content: bytes) -> dict[str, str]:
    """Lines of a key and a value, as Kaldi writes them."""
    lines = content.decode("utf-8", "replace").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}
