"""The megakernel on a CPU: compiled by g++, its threads emulated (`megakernel_emulation.h`)."""

import ctypes
import subprocess
from functools import cache
from pathlib import Path

from llm_engine.cuda.megakernel.kernel import bytes_of
from llm_engine.cuda.megakernel.tables import THREADS, Phase, Step, definitions

_HERE = Path(__file__).parent
_KERNEL = Path(__file__).parents[3] / "llm_engine/cuda/megakernel"


@cache
def library(folder: Path, head_dim: int, bits: int) -> ctypes.CDLL:
    """Compile for a size of heads and of weights."""
    built = folder / f"megakernel_{head_dim}_{bits}.so"
    (folder / "table_fields.h").write_text(_fields())
    subprocess.run(
        [
            *("g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-I", str(_KERNEL)),
            "-U_FORTIFY_SOURCE",  # its longjmp stays on one stack
            *("-I", str(folder), f"-DTABLES_THREADS={THREADS}", "-o", str(built)),
            *definitions(head_dim=head_dim, weight_bits=bits),
            str(_HERE / "megakernel_emulation.cpp"),
        ],
        check=True,
    )
    return ctypes.CDLL(str(built))


def _fields() -> str:
    """C++ initializers of `TableField`: name, place and size of each field that the tables have, as
    the kernel has it."""
    return "".join(
        f'{{"{structure.__name__}.{name}", offsetof({structure.__name__}, {name}),'
        f" sizeof({structure.__name__}::{name})}},\n"
        for structure in (Phase, Step)
        for name, *_ in structure._fields_
    )


class _Field(ctypes.Structure):
    """`TableField` of the emulation."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("offset", ctypes.c_size_t),
        ("num_bytes", ctypes.c_size_t),
    )


def fields_of_the_kernel(built: ctypes.CDLL) -> dict[str, tuple[int, int]]:
    """Place and size in bytes of each field of the kernel's structures, by "Structure.field"."""
    count = ctypes.c_int.in_dll(built, "num_table_fields").value
    found = (_Field * count).in_dll(built, "table_fields")
    return {each.name.decode(): (each.offset, each.num_bytes) for each in found}


class EmulatedLauncher:
    """A device of a few multiprocessors. `seed`: of the order in which copies arrive and blocks
    run."""

    def __init__(
        self, folder: Path, head_dim: int, bits: int, *, num_blocks: int = 3, seed: int = 1
    ) -> None:
        self._emulate = library(folder, head_dim, bits).emulate
        self.num_blocks = num_blocks
        self.shared_bytes = 227 << 10
        self._seed = seed

    def launch(self, step: Step, shared_bytes: int) -> None:
        argument = bytes_of(step)
        result = self._emulate(
            argument, len(argument), self.num_blocks, shared_bytes, ctypes.c_uint64(self._seed)
        )
        assert result == 0, "the kernel waits for ever" if result == 1 else "another Step"
