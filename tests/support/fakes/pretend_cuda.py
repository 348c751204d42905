"""A GPU that is none: what CUDA demands of a program, enforced where there is no GPU.

Theory of operation
-------------------
Tensors of a `PretendCuda` say that they lie on a GPU, and hold an ordinary tensor. What is done to
them is *launched*, not done: it is done as late as a real GPU might, when the host waits for it (an
event, a stream, a value that it reads). Until then what comes out is poison. So these show as
errors or as other numbers, though all is computed on the CPU:

* tensors of the host among those of the device, and what was made on the host by mistake;
* an array of the host that is written again, or read, before its copy is done;
* a value that is read, or memory that is not page-locked, while a graph is recorded;
* what is launched on another stream than the one whose order counts;
* memory that is taken while a step is launched, when all of it should be there already;
* what a graph leaves in its pool and something else reads: every replay poisons the pool first.

Views are made at once, as they are on a GPU: they are a matter of the host. All else runs in the
order in which it was launched. `torch.inference_mode` becomes `torch.no_grad`, as wrapped tensors
have no views in the former.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.fakes.pretend_tensors import (
    CPU,
    DEVICE,
    META,
    CudaMisuse,
    DeviceTensor,
    on_meta,
    placed,
    poison,
    unwrapped,
    written,
)

Work = Callable[[], object]


class PretendCuda:
    """One device, and what has been launched on it. One thread."""

    def __init__(self, chance: Random | None = None) -> None:
        """Work is done as late as it can be or, with `chance`, at any time until then."""
        self._chance = chance
        self._queue: deque[Work] = deque()
        self._num_launched = 0
        self._recording: list[Work] | None = None
        self._pool: list[Tensor] = []
        self._pinned: dict[int, weakref.ref[Any]] = {}
        self._stream: object = None
        self.must_launch_on: object = None
        """A stream; None: any."""
        self.num_made = 0
        """Tensors that were made on the device, but for those that recordings made."""
        self.num_waits = 0
        """Times that the host has waited for the device."""

    # --- what is launched, and done ---

    def launch(self, work: Work) -> None:
        """Do it when its time has come; or record it."""
        if self._recording is not None:
            self._recording.append(work)
            return
        if self.must_launch_on not in (None, self._stream):
            raise CudaMisuse("launched on another stream")
        self._queue.append(work)
        self._num_launched += 1
        if self._chance is not None:
            self._do(self._chance.randint(0, len(self._queue)))

    def wait(self, mark: int | None = None) -> None:
        """Until all is done that was launched before the mark; None: all."""
        self.refuse_in_recording("the host waits")
        num_done = self._num_launched - len(self._queue)
        count = len(self._queue) if mark is None else max(0, mark - num_done)
        self.num_waits += count > 0
        self._do(count)

    def mark(self) -> int:
        """Here, among what is launched."""
        self.refuse_in_recording("an event")
        return self._num_launched

    def refuse_in_recording(self, what: str) -> None:
        if self._recording is not None:
            raise CudaMisuse(f"{what} while a graph is recorded")

    def _do(self, count: int) -> None:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            for _ in range(count):
                self._queue.popleft()()

    # --- tensors ---

    def make(self, like: Tensor) -> DeviceTensor:
        """A new one, of poison, with the shape of a tensor that has no memory."""
        raw = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=CPU)
        poison(raw)
        if self._recording is None:
            self.num_made += 1
        else:
            self._pool.append(raw)
        return DeviceTensor(raw, self)

    def pin(self, tensor: Tensor) -> Tensor:
        """Say that a tensor of the host is page-locked."""
        storage = tensor.untyped_storage()
        self._pinned[storage.data_ptr()] = weakref.ref(storage)
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        found = self._pinned.get(tensor.untyped_storage().data_ptr())
        return found is not None and found() is not None

    def copy(self, there: Tensor, here: Tensor, non_blocking: bool = False) -> Tensor:
        """`there.copy_(here)`, one of which is on the device."""
        to, of = (isinstance(each, DeviceTensor) for each in (there, here))
        raw_there, raw_here = unwrapped(there), unwrapped(here)
        is_async = (to and of) or (non_blocking and self.is_pinned(raw_there if of else raw_here))
        if not is_async:
            self.refuse_in_recording("a copy of memory that is not page-locked")
        if to and not is_async:
            raw_here = raw_here.clone()  # a GPU's driver does so before it returns
        elif not to:
            poison(raw_there)
        self.launch(lambda: raw_there.copy_(raw_here))
        if not to and not is_async:
            self.wait()
        return there

    # --- operations ---

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Any operation of torch's that has an operand on the device."""
        aten = torch.ops.aten
        if func is aten.copy_.default:
            return self.copy(*args, **kwargs)
        goes_to_host = kwargs.get("device", DEVICE).type == "cpu"
        if func is aten._local_scalar_dense.default or goes_to_host:
            self.wait()
            return func(*unwrapped(args), **kwargs)
        for each in _pytree.tree_leaves((args, kwargs)):
            if isinstance(each, Tensor) and not isinstance(each, DeviceTensor) and each.dim():
                raise CudaMisuse(f"{func}: an operand {tuple(each.shape)} is on the host")
        raw_args, raw_kwargs = unwrapped(args), placed(unwrapped(kwargs), CPU)
        writes = [each.alias_info.is_write for each in func._schema.returns if each.alias_info]
        if writes and not any(writes):  # a view
            found = func(*raw_args, **raw_kwargs)
            return _pytree.tree_map_only(Tensor, lambda each: DeviceTensor(each, self), found)
        if func._schema.is_mutable:
            self.launch(lambda: func(*raw_args, **raw_kwargs))
            return written(func._schema, args, kwargs)
        shapes = func(*on_meta(raw_args), **on_meta(placed(raw_kwargs, META)))
        out = _pytree.tree_map_only(Tensor, self.make, shapes)
        raw_out = unwrapped(out)

        def run() -> None:
            found = func(*raw_args, **raw_kwargs)
            for there, each in zip(*map(_pytree.tree_leaves, (raw_out, found)), strict=True):
                if isinstance(there, Tensor):
                    there.copy_(each)

        self.launch(run)
        return out

    def dispatch_making(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """An operation that makes a tensor on the device, of nothing."""
        out = self.make(func(*args, **placed(kwargs, META)))
        if "empty" not in func.name():
            self.launch(lambda: out.raw.copy_(func(*args, **placed(kwargs, CPU))))
        return out

    # --- in the place of torch.cuda ---

    @contextlib.contextmanager
    def installed(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Be what `torch.cuda` and tensors on a GPU are."""
        stream = SimpleNamespace(synchronize=self.wait)
        properties = SimpleNamespace(multi_processor_count=4)
        names: dict[str, Any] = {
            "_lazy_init": lambda: None,
            "synchronize": lambda device=None: self.wait(),
            "current_stream": lambda device=None: stream,
            "get_device_capability": lambda device=None: (8, 9),
            "get_device_properties": lambda device=None: properties,
            "Event": lambda: _Event(self),
            "Stream": lambda device=None: SimpleNamespace(synchronize=self.wait),
            "stream": self._on_stream,
            "graph_pool_handle": object,
            "CUDAGraph": SimpleNamespace,
            "graph": self._recorded,
        }
        for name, value in names.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "inference_mode", torch.no_grad)
        with torch.no_grad(), _Functions(self), _Operations(self):
            yield

    @contextlib.contextmanager
    def _on_stream(self, stream: object) -> Iterator[None]:
        before, self._stream = self._stream, stream
        try:
            yield
        finally:
            self._stream = before

    @contextlib.contextmanager
    def _recorded(
        self, graph: SimpleNamespace, *, stream: object, **options: object
    ) -> Iterator[None]:
        works: list[Work] = []
        self._recording = works
        try:
            with self._on_stream(stream):
                yield
        finally:
            self._recording = None

        def run() -> None:
            for each in self._pool:
                poison(each)
            for work in works:
                work()

        def replay() -> None:
            if not works:
                raise CudaMisuse("a graph is replayed that was reset")
            self.launch(run)

        def reset() -> None:
            if self._queue:
                raise CudaMisuse("a graph is reset while work is under way")
            works.clear()

        graph.replay, graph.reset = replay, reset


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operations without operands as well: those that make tensors."""

    def __init__(self, cuda: PretendCuda) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        operands = _pytree.tree_leaves((args, kwargs))
        if any(isinstance(each, DeviceTensor) for each in operands):
            return self._cuda.dispatch(func, args, kwargs)
        if (kwargs.get("device") or CPU).type == "cuda":
            return self._cuda.dispatch_making(func, args, kwargs)
        if kwargs.pop("pin_memory", False):
            return self._cuda.pin(func(*args, **kwargs))
        return func(*args, **kwargs)


class _Functions(TorchFunctionMode):
    """Copies to the device, which torch refuses before any dispatch."""

    def __init__(self, cuda: PretendCuda) -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in (Tensor.to, torch.tensor):
            return func(*args, **kwargs)
        devices = [each for each in (*args[1:], kwargs.pop("device", None)) if _is_device(each)]
        if not devices or torch.device(devices[0]).type != "cuda":
            return func(*args, **kwargs, **({"device": devices[-1]} if len(devices) > 1 else {}))
        here = func(*(each for each in args if not _is_device(each)), **kwargs)
        if isinstance(here, DeviceTensor):
            return here
        return self._cuda.copy(torch.empty_like(here, device=DEVICE), here)


class _Event:
    """A mark in what was launched."""

    def __init__(self, cuda: PretendCuda) -> None:
        self._cuda = cuda
        self._mark: int | None = None

    def record(self) -> None:
        self._mark = self._cuda.mark()

    def synchronize(self) -> None:
        if self._mark is not None:
            self._cuda.wait(self._mark)


def _is_device(found: Any) -> bool:
    return isinstance(found, torch.device | str)
