"""Start of the processes of several GPUs, and the errors where it fails."""

import multiprocessing as mp
import os
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch.distributed as dist

from agent.server.server import LEFT_BEHIND
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.tensor_parallel.group import ProcessGroup, lead
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.errors import DeviceLostError, ModelError
from tests.support.fakes.llm_cuda import one_of_several
from tests.support.fakes.llm_models import save_tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "qwen2", num_hidden_layers=2)
    return path


def test_what_a_follower_can_t_load_is_the_leader_s_error(model: Path) -> None:
    with pytest.raises(ModelError, match="can't be divided among 3 GPUs"):
        Shard(0, 3).check(load_checkpoint(model).config)
    with pytest.raises(ModelError, match="GPU 1: ModelError: out of luck"):
        lead(2, "gloo", partial(_fail_as_follower, model))


def test_a_follower_that_dies_while_it_loads_is_an_error(model: Path) -> None:
    with pytest.raises(ModelError, match=r"GPU 1: its process ended \(exit 7\)"):
        lead(2, "gloo", partial(_end_as_follower, model))


def test_a_follower_that_can_not_meet_the_others_is_an_error() -> None:
    """The leader is waiting for it then, and goes on: in a process of its own."""
    ours, theirs = mp.Pipe()
    leader = mp.get_context("spawn").Process(target=_lead_one_that_cannot_meet, args=(theirs,))
    leader.start()
    problem, num_left, is_lost = ours.recv()
    assert "GPU 1: OSError: no way to the others" in problem
    assert num_left == 0
    assert is_lost, "it cannot be tried again"
    leader.join()


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_follower_that_fails_to_record_is_an_error(is_dead: bool) -> None:
    """The leader records as well, and may wait for it inside a library: it is left there."""
    release = threading.Event()

    def make_own(team: ProcessGroup) -> Callable[[], CudaBackend]:
        return lambda: release.wait() and None  # type: ignore[return-value]

    expected = r"its process ended \(exit 7\)" if is_dead else "MemoryError: no room"
    with pytest.raises(ModelError, match=f"GPU 1: {expected}"):
        lead(2, "gloo", partial(_fail_to_record, is_dead), make_own=make_own)
    assert not mp.active_children()
    (leader,) = [each for each in threading.enumerate() if each.name == "halfsec-leader"]
    assert leader.name.startswith(LEFT_BEHIND)
    release.set()
    leader.join()


def test_what_the_leader_fails_at_is_the_error_where_the_others_are_well(model: Path) -> None:
    def make_own(team: ProcessGroup) -> Callable[[], CudaBackend]:
        raise ModelError("too large")

    with pytest.raises(ModelError, match=r"^too large$"):
        lead(2, "gloo", partial(one_of_several, model), make_own=make_own)


def test_failing_followers_error_is_reported(model: Path) -> None:
    """Also behind one that is well."""

    def make_own(team: ProcessGroup) -> Callable[[], CudaBackend]:
        raise RuntimeError("connection closed by peer")

    with pytest.raises(ModelError, match="GPU 2: MemoryError: no room") as caught:
        lead(3, "gloo", _fail_late, make_own=make_own)
    assert isinstance(caught.value.__cause__, RuntimeError)


def _fail_late(team: ProcessGroup) -> Callable[[], CudaBackend]:
    if team.rank == 2:
        threading.Event().wait(0.3)
        raise MemoryError("no room")
    return lambda: None  # type: ignore[return-value]


class _WithoutAWay:
    """A `Make`: where it is sent, nobody can be met."""

    def __reduce__(self) -> tuple[Callable[[], "_WithoutAWay"], tuple[()]]:
        return _cut_off, ()

    def __call__(self, team: ProcessGroup) -> Callable[[], CudaBackend]:
        raise AssertionError


def _cut_off() -> _WithoutAWay:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no way to the others")

    dist.init_process_group = fail
    return _WithoutAWay()


def _lead_one_that_cannot_meet(tell: Connection) -> None:
    problem, is_lost = "", False
    try:
        lead(2, "gloo", _WithoutAWay())
    except ModelError as error:
        problem = str(error)
    try:
        lead(2, "gloo", _WithoutAWay())
    except DeviceLostError:
        is_lost = True
    tell.send((problem, len(mp.active_children()), is_lost))
    os._exit(0)


def _fail_to_record(is_dead: bool, team: ProcessGroup) -> Callable[[], CudaBackend]:
    def finish() -> CudaBackend:
        if is_dead:
            os._exit(7)
        raise MemoryError("no room")

    return finish


def _end_as_follower(model: Path, team: ProcessGroup) -> Callable[[], CudaBackend]:
    if team.rank == 1:
        os._exit(7)
    return one_of_several(model, team)


def _fail_as_follower(model: Path, team: ProcessGroup) -> Callable[[], CudaBackend]:
    if team.rank == 1:
        raise ModelError("out of luck")
    return one_of_several(model, team)
