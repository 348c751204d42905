"""Training of draft heads: the loss falls, and a killed training resumes exactly."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.errors import ModelError
from llm_engine.models.medusa_heads import DraftHeads, draft, frequent_tokens, shared_parts
from llm_engine.training.draft_head_training import (
    Recipe,
    Training,
    TrainingReply,
    TrainingRows,
    acceptance,
    joined,
    read_rows,
    shared_of,
)
from tests.support.fakes.draft_heads import TEXT, shape_for
from tests.support.fakes.llm_decoding import greedy
from tests.support.fakes.llm_models import save_tiny_model

RECIPE = Recipe(num_heads=3, inner_size=32, num_epochs=12, batch_rows=16, learning_rate=5e-3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "llama")
    return path


def learning_rows(tiny: Path) -> tuple[Checkpoint, DeviceModel, TrainingRows]:
    checkpoint = load_checkpoint(tiny)
    model = load_model(checkpoint, WeightFormat(dtype=torch.float32), "cpu", context_length=64)
    prompts = [TEXT[start : start + 5] for start in (0, 7, 13)]
    replies = [TrainingReply(prompt, tuple(greedy(checkpoint, prompt, 30))) for prompt in prompts]
    return checkpoint, model, joined([read_rows(model, reply) for reply in replies])


def made(tiny: Path, recipe: Recipe = RECIPE) -> Training:
    checkpoint, model, rows = learning_rows(tiny)
    tokens = frequent_tokens([rows.following.tolist()], 30)
    shape = shape_for(checkpoint, num_tokens=len(tokens))
    return Training(shape, tokens, shared_of(model, tokens), rows, recipe)


def same(left: DraftHeads, right: DraftHeads) -> bool:
    return all(
        torch.equal(ours, theirs)
        for one, other in zip(left.heads, right.heads, strict=True)
        for ours, theirs in zip(asdict(one).values(), asdict(other).values(), strict=True)
    )


def test_training_learns(tiny: Path) -> None:
    training = made(tiny)
    first = training.heads()
    losses = [training.step() for _ in range(training.num_steps)]
    assert training.num_done == training.num_steps > 20
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert not same(first, training.heads())


def test_an_untrained_head_says_what_the_model_said(tiny: Path) -> None:
    checkpoint, _, rows = learning_rows(tiny)
    heads = made(tiny).heads()
    shared = shared_parts(checkpoint, heads.tokens)
    state = rows.states[3]
    wanted = int(heads.tokens[int((shared.rows @ state).argmax())])
    assert draft(heads, shared, state, TEXT[9], 7) == [wanted] * 3
    assert draft(heads, shared, state, TEXT[9], 1) == [wanted]


def test_a_killed_training_ends_with_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    whole, killed = made(tiny), made(tiny)
    for _ in range(whole.num_steps):
        whole.step()
    for _ in range(7):
        killed.step()
    killed.save(tmp_path / "state")
    killed.step()  # lost
    resumed = made(tiny)
    resumed.restore(tmp_path / "state")
    assert resumed.num_done == 7
    while resumed.num_done < resumed.num_steps:
        resumed.step()
    assert same(whole.heads(), resumed.heads())
    other = made(tiny, replace(RECIPE, learning_rate=1e-3))
    with pytest.raises(ModelError, match="of other settings"):
        other.restore(tmp_path / "state")
    (tmp_path / "state").write_bytes(b"half")
    with pytest.raises(ModelError, match="cannot be resumed from"):
        other.restore(tmp_path / "state")


def test_acceptance_is_that_of_drafting(tiny: Path) -> None:
    """Counted by drafting at every row, one after another."""
    training = made(tiny)
    for _ in range(training.num_steps):
        training.step()
    checkpoint, _, rows = learning_rows(tiny)
    heads = training.heads()
    shared = shared_parts(checkpoint, heads.tokens)
    found = acceptance(heads, shared, rows)
    tried, right = [0, 0, 0], [0, 0, 0]
    usable = [row for row in range(len(rows.states)) if rows.num_more[row] >= 3]
    for row in usable:
        drafted = draft(heads, shared, rows.states[row], int(rows.following[row]), 3)
        for place, token in enumerate(drafted):
            tried[place] += 1
            if token != rows.following[row + place + 1]:
                break
            right[place] += 1
    assert found.num_rows == len(usable)
    assert found.by_position == pytest.approx(
        [r / max(t, 1) for r, t in zip(right, tried, strict=True)]
    )
    assert found.tokens_a_step == pytest.approx(1 + sum(right) / len(usable))
    assert sum(right) > 10


def test_too_little_to_learn_from(tiny: Path) -> None:
    checkpoint, model, _ = learning_rows(tiny)
    with pytest.raises(ModelError, match="no replies"):
        joined([])
    short = read_rows(model, TrainingReply(TEXT[:5], TEXT[5:6]))
    tokens = frequent_tokens([TEXT], 30)
    shape = shape_for(checkpoint, num_tokens=len(tokens))
    with pytest.raises(ModelError, match="two tokens"):
        Training(shape, tokens, shared_of(model, tokens), short, RECIPE)
    heads = made(tiny).heads()
    with pytest.raises(ModelError, match="longer than a draft"):
        acceptance(heads, shared_parts(checkpoint, heads.tokens), short)


def test_frequent_tokens() -> None:
    assert frequent_tokens([[5, 5, 9, 2], [2, 9, 7, 5]], 3).tolist() == [2, 5, 9]
    assert frequent_tokens([[5, 1]], 9).tolist() == [1, 5]
