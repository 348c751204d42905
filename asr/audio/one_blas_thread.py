"""One thread for numpy's matrix products.

numpy's BLAS divides even a product of a millisecond among all cores, and its threads then spin for
20 to 50 ms, waiting for the next one. The features of each pass of the recognizer are such a
product, and so are the turn model's: on two cores their spinning took a third of the time of the
passes themselves, which the encoder then waited for.

threadpoolctl does the same with any BLAS. But it looks through the process' libraries in a callback
of the loader, which holds the loader's lock and waits for the interpreter's; models are loaded in
several threads, and one that imports a module at that moment waits for the first and holds the
second: the service then never gets ready.
"""

import ctypes
import functools
from pathlib import Path
from typing import Final

import numpy as np

_LIBRARIES: Final = ("numpy.libs/*openblas*", "numpy/.dylibs/*openblas*")
"""Where numpy's wheels have their BLAS, from the folder that numpy lies in."""

_SETTERS: Final = (
    "scipy_openblas_set_num_threads64_",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
"""Names of the one function, by how OpenBLAS was built."""


@functools.cache
def use_one_blas_thread() -> None:
    """Have numpy compute products on the thread that asks, in the whole process from now on.

    Only numpy's own BLAS: that of torch or CTranslate2 computes models, with threads of its own.
    Where numpy has none, but the system's or Apple's, that stays as it is.
    """
    folder = Path(np.__file__).parents[1]
    for path in (found for pattern in _LIBRARIES for found in folder.glob(pattern)):
        try:
            library = ctypes.CDLL(str(path))  # loaded already: numpy has it
        except OSError:  # left by another version: what is only quicker must not stop a start
            continue
        setters = (getattr(library, name, None) for name in _SETTERS)
        setter = next((each for each in setters if each is not None), None)
        if setter is not None:
            setter(1)
