"""Tensors that say they lie on a GPU: the operands of `pretend_cuda`."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree

if TYPE_CHECKING:
    from tests.support.fakes.pretend_cuda import PretendCuda

DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")


class CudaMisuse(AssertionError):
    """A use of tensors that a GPU would answer with an error, or worse."""


class DeviceTensor(Tensor):
    """One that says it is on the GPU."""

    raw: Tensor
    owner: "PretendCuda"

    @staticmethod
    def __new__(cls, raw: Tensor, owner: "PretendCuda") -> "DeviceTensor":
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(),
            dtype=raw.dtype, device=DEVICE,
        )  # fmt: skip
        made.raw, made.owner = raw, owner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    def get_item(self, index: Any) -> Any:
        """`self[index]`."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(part, Tensor | list) for part in parts):
            return DeviceTensor(self.raw[index], self.owner)
        wanted = [None if part == slice(None) else part for part in parts]
        if not all(part is None or isinstance(part, Tensor) for part in wanted):
            raise CudaMisuse(f"places {index} are not pretended")
        return self.owner.dispatch(torch.ops.aten.index.Tensor, (self, wanted), {})

    def set_item(self, index: Any, value: Any) -> None:
        """`self[index] = value`, for places given by numbers and slices."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Tensor | list) for part in parts):
            raise CudaMisuse("places given by tensors are not pretended")
        there = DeviceTensor(self.raw[index], self.owner)
        if isinstance(value, Tensor):
            self.owner.copy(there, value)
        else:
            there.fill_(value)

    def as_contiguous(self) -> Tensor:
        """`self.contiguous()`."""
        if self.is_contiguous():
            return self
        return torch.clone(self, memory_format=torch.contiguous_format)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Work that torch itself would do on the device before it calls `__torch_dispatch__`."""
        kwargs, first = kwargs or {}, args[0] if args else None
        if isinstance(first, DeviceTensor):
            if func is Tensor.__getitem__:
                return first.get_item(args[1])
            if func is Tensor.__setitem__:
                return first.set_item(*args[1:])
            if func is Tensor.tolist:
                return first.cpu().tolist()
            if func is Tensor.contiguous:
                return first.as_contiguous()
        if func is Tensor.copy_:
            owner = next(each.owner for each in args[:2] if isinstance(each, DeviceTensor))
            return owner.copy(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        operands = _pytree.tree_leaves((args, kwargs))
        owner = next(each.owner for each in operands if isinstance(each, DeviceTensor))
        return owner.dispatch(func, args, kwargs or {})


def unwrapped(found: Any) -> Any:
    """The ordinary tensors in lists, tuples, dictionaries and dataclasses."""
    if isinstance(found, DeviceTensor):
        return found.raw
    if isinstance(found, tuple | list):
        return type(found)(unwrapped(each) for each in found)
    if isinstance(found, dict):
        return {name: unwrapped(value) for name, value in found.items()}
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        names = [each.name for each in dataclasses.fields(found)]
        return dataclasses.replace(found, **{n: unwrapped(getattr(found, n)) for n in names})
    return found


def placed(kwargs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The same on another device."""
    placed = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return placed | {"device": device} if "device" in placed else placed


def on_meta(found: Any) -> Any:
    def shape_of(each: Tensor) -> Tensor:
        return torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=META)

    return _pytree.tree_map_only(Tensor, shape_of, found)


def written(schema: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operands that an operation writes: what it returns."""
    named = {each.name: value for each, value in zip(schema.arguments, args, strict=False)}
    named |= kwargs
    written = [each for each in schema.arguments if each.alias_info and each.alias_info.is_write]
    found = [named[each.name] for each in written]
    return found[0] if len(found) == 1 else tuple(found)


def poison(tensor: Tensor) -> None:
    """Fill with unusable numbers: NaN, or integers too large for any index."""
    if tensor.dtype.itemsize == 1:
        tensor.view(torch.uint8).fill_(0x7F)
    elif tensor.is_floating_point():
        tensor.fill_(math.nan)
    else:
        tensor.fill_(0x55555555)
