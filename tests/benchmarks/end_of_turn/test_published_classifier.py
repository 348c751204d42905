"""Smart Turn's published classifier: features against the reference, its rule, wrong files."""

import math
from pathlib import Path

import numpy as np
import pytest

from agent.turn_taking.end_of_turn_model import Evidence
from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm, last_voiced_sample
from asr.errors import ModelError
from benchmarks.end_of_turn.published_classifier import (
    ASKED_MS,
    INCOMPLETE_MS,
    SECONDS,
    PublishedClassifier,
    rule_of,
)
from tests.support.models import model_path

RECORDINGS = Path(__file__).parents[2] / "recordings"


@pytest.fixture(scope="module")
def published() -> PublishedClassifier:
    return PublishedClassifier.load(model_path("smart-turn") / "smart-turn-v3.2-cpu.onnx")


def spoken(name: str, silence_ms: int = ASKED_MS) -> Pcm:
    """A recording up to so much silence behind its last word."""
    pcm = read_file(RECORDINGS / f"{name}.wav")
    last = last_voiced_sample(pcm)
    assert last is not None
    return np.concatenate([pcm[: last + 1], np.zeros(silence_ms * RATE_HZ // 1000, np.float32)])


@pytest.mark.models
def test_features_are_those_of_the_reference(published: PublishedClassifier) -> None:
    from transformers import WhisperFeatureExtractor

    pcm = spoken("vm-nobodyavail")
    padded = np.pad(pcm, (SECONDS * RATE_HZ - len(pcm), 0))
    reference = WhisperFeatureExtractor(chunk_length=SECONDS)(  # type: ignore[no-untyped-call]
        padded, sampling_rate=RATE_HZ, do_normalize=True, return_tensors="np"
    ).input_features[0]
    assert np.abs(published.features(pcm) - reference).max() < 1e-3


@pytest.mark.models
def test_whole_sentences_are_complete_and_their_beginnings_are_not(
    published: PublishedClassifier,
) -> None:
    names = ("vm-nobodyavail", "auth-incorrect", "ill-disposed", "conf-locked", "vm-savefolder")
    whole = [published.probability(spoken(name)) for name in names]
    half = [published.probability(spoken(name, 0)[:RATE_HZ]) for name in names]
    assert all(0 <= each <= 1 for each in whole + half)
    assert sum(each > 0.5 for each in whole) >= 4
    assert sum(each > 0.5 for each in half) <= 1
    odds = published.log_odds(spoken(names[0]))
    assert odds == pytest.approx(math.log(whole[0] / (1 - whole[0])), abs=0.5)


def test_complete_after_its_silence_and_else_when_the_patience_ends() -> None:
    rule = rule_of(0.8)
    waits = [rule(Evidence("Yes.", sound)) for sound in (1.3, 1.4, None)]
    assert waits == [INCOMPLETE_MS, ASKED_MS, INCOMPLETE_MS]


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match="not Smart Turn version 3, or damaged"):
        PublishedClassifier.load(path)
