"""End-of-turn decision of version 1, to compare with: a line from one score to a silence.

Its weights are the files `agent/turn_taking/end_of_turn_model.json` and
`asr/speech_detection/turn_model_head.json` of a release before version 2:

    git show e17cffb3:agent/turn_taking/end_of_turn_model.json > line_score.json
    git show e17cffb3:asr/speech_detection/turn_model_head.json > line_head.json
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from agent.session.api.settings import Eagerness
from agent.turn_taking.end_of_turn_model import EAGERNESS, Evidence, is_mid_number, word_class
from agent.turn_taking.thresholds import NEUTRAL_PAUSE_MS, SOUND_LIMIT
from asr.errors import AudioError
from asr.speech_detection.turn_model_head import TurnModelHead

DANGLING_MS: Final = 1200
NUMBER_MS: Final = 2000


def read_line_head(path: Path) -> TurnModelHead:
    """The head of version 1's turn model, a linear layer. Raises AudioError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        weights, bias = np.array(data["weights"], np.float32), float(data["bias"])
        if weights.ndim != 1:
            raise ValueError(f"weights of shape {list(weights.shape)}")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise AudioError(f"{path}: not a head of version 1: {error}") from error
    both_ways = np.stack([weights, -weights])  # what one unit cuts off, the other has
    output = np.array([1, -1], np.float32)
    return TurnModelHead(both_ways, np.zeros(2, np.float32), output, bias)


@dataclass(frozen=True, slots=True)
class LineScore:
    """Score by word class, sound and own pauses, and a line for each eagerness."""

    with_sound: Mapping[str, float]
    words_alone: Mapping[str, float]
    waits: Mapping[str, Mapping[str, float]]

    @classmethod
    def load(cls, path: Path) -> "LineScore":
        """Load a file of version 1. Raises AudioError."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(data["with_sound"], data["words_alone"], data["waits"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise AudioError(f"{path}: not a score of version 1: {error}") from error

    def wait_ms(self, evidence: Evidence, eagerness: Eagerness) -> int:
        """Silence after which the turn is over."""
        values = {"one": 1.0, word_class(evidence.words): 1.0}
        values["own_pause"] = math.log(max(evidence.own_pause_ms, 64) / NEUTRAL_PAUSE_MS)
        weights = self.words_alone
        if evidence.sound is not None:
            values["sound"] = max(-SOUND_LIMIT, min(SOUND_LIMIT, evidence.sound))
            weights = self.with_sound
        odds = sum(weights.get(name, 0.0) * value for name, value in values.items())
        wait_ms = 0
        for name in EAGERNESS[: EAGERNESS.index(eagerness) + 1]:
            line = self.waits[name]
            wanted_ms = line["base_ms"] - line["slope_ms"] * odds
            wait_ms = max(
                wait_ms, math.ceil(max(line["least_ms"], min(line["most_ms"], wanted_ms)))
            )
        if is_mid_number(evidence.words):
            return max(NUMBER_MS, wait_ms)
        return max(DANGLING_MS, wait_ms) if word_class(evidence.words) == "dangling" else wait_ms
