"""Pauses as they are written down, with the real detector, recognizer and turn model."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from asr.audio import RATE_HZ
from asr.errors import AudioError
from asr.files import read_file
from asr.turn_bench import area_under_curve
from asr.turn_data import Source, command_turn, hesitant_turn
from asr.turn_pauses import PROBED_MS, Models, pauses_of, read_pauses
from tests.models import model_path

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.mark.models
def test_the_pauses_of_a_turn() -> None:
    models = Models(model_path("smart-turn").parent, threads=1)
    pcm = read_file(RECORDINGS / "ill-disposed.wav")
    middle = np.argmin(np.convolve(np.abs(pcm[RATE_HZ:-RATE_HZ]), np.ones(800), mode="valid"))
    source = Source("ill-disposed", pcm, "", (int(middle) + RATE_HZ + 400,))
    plain, whole = command_turn(source)
    *_, end = pauses_of(plain, whole, models)
    assert end.is_end
    assert end.silence_ms > 2000
    assert abs(end.at_sample - plain.end) < RATE_HZ // 4
    assert "young man" in end.final
    assert [after_ms for after_ms, _ in end.sound] == list(PROBED_MS)

    made = hesitant_turn(source)
    assert made is not None
    *inner, end = pauses_of(*made, models)
    ((first, last),) = made[0].pauses
    spliced = [one for one in inner if first - RATE_HZ // 4 < one.at_sample < last]
    assert len(spliced) == 1
    assert not spliced[0].is_end
    assert abs(spliced[0].silence_ms - (last - first) * 1000 / RATE_HZ) < 300
    assert len(spliced[0].final) < len(end.final)
    assert end.is_end


def test_the_area_under_the_curve() -> None:
    assert area_under_curve([0.1, 0.2, 0.8, 0.9], [False, False, True, True]) == 1.0
    assert area_under_curve([0.9, 0.1], [False, True]) == 0.0
    assert area_under_curve([0.5, 0.5, 0.5], [False, True, True]) == 0.5
    assert area_under_curve([0.1, 0.7, 0.4, 0.9], [False, False, True, True]) == 0.75
    assert np.isnan(area_under_curve([0.1, 0.2], [True, True]))


def test_pauses_are_read_as_they_were_written(tmp_path: Path) -> None:
    from tests.test_agent_turn_trials import pause

    path = tmp_path / "pauses.jsonl"
    path.write_text(json.dumps(dataclasses.asdict(pause())) + "\n")
    assert read_pauses(path) == [pause()]
    path.write_text("[]\n")
    with pytest.raises(AudioError, match=r"make them with `python -m asr.turn_pauses`"):
        read_pauses(path)
