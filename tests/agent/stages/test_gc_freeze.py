"""Loaded models are frozen for the garbage collector until a stage is rebuilt."""

import gc
import weakref

import pytest

from agent.errors import StageError
from agent.stages.gc_freeze import freeze_heap
from agent.stages.model_thread import ModelThread


class Model:
    """Refers to itself, as large models do: only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _thawed() -> object:
    yield
    gc.unfreeze()


def test_a_collection_finds_nothing_to_look_at() -> None:
    kept = [Model()]
    freeze_heap()
    assert gc.get_freeze_count() > 10_000
    assert not any(each is kept[0] for each in gc.get_objects())


async def test_a_model_that_is_replaced_is_freed() -> None:
    stage: ModelThread[Model] = ModelThread("llm", Model)
    await stage.start()
    freeze_heap()
    assert stage.model is not None
    old = weakref.ref(stage.model)

    def fail(model: Model) -> None:
        raise RuntimeError("out of order")

    with pytest.raises(StageError):
        await stage.call(fail, timeout_s=5)
    await stage.call(lambda model: model.me is model, timeout_s=5)
    gc.collect()  # Python does so in its own time
    assert old() is None
    await stage.close()
