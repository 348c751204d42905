"""The language model's opinion on the words of pauses, as a call would get it."""

from pathlib import Path

import pytest

from agent.config.schema import Config
from asr.errors import AudioError
from benchmarks.end_of_turn.message_ends import read_message_ends, scored
from llm_engine.config import EngineConfig
from llm_engine.engine import Engine
from tests.support.fakes.llm_models import save_tiny_model


async def test_each_text_with_words_has_a_score(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3", num_hidden_layers=2, head_dim=16)
    engine = Engine.load(tmp_path, EngineConfig(num_threads=1))
    texts = ["Book a table", "Book a table for two.", "..."]
    found = await scored(engine, Config(), texts)
    again = await scored(engine, Config(), reversed(texts))
    engine.close()
    assert set(found) == set(texts[:2])
    assert all(log_prob < 0 for log_prob in found.values())
    assert found[texts[0]] != found[texts[1]]
    assert again == pytest.approx(found, abs=1e-3)


@pytest.mark.parametrize("content", ["", "[]", '{"Yes.": "likely"}'])
def test_scores_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ends.json"
    path.write_text(content)
    with pytest.raises(AudioError, match=r"make them with `python -m benchmarks.end_of_turn.mess"):
        read_message_ends(path)
