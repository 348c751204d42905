"""One thread for numpy's matrix products.

numpy's BLAS divides even a product of a millisecond among all cores, and its threads then spin for
20 to 50 ms, waiting for the next one. The features of each pass of the recognizer are such a
product, and so are the turn model's: on two cores their spinning took a third of the time of the
passes themselves, which the encoder then waited for.
"""

import functools
from pathlib import Path
from typing import Final

_OWNER: Final = "numpy"
"""Only numpy's own BLAS: that of torch or CTranslate2 computes models, with threads of its own."""


@functools.cache
def use_one_blas_thread() -> None:
    """Have numpy compute products on the thread that asks, in the whole process from now on.

    Where numpy's BLAS is the system's or Apple's, it stays as it is.
    """
    from threadpoolctl import ThreadpoolController  # looks through all libraries: some 10 ms

    controller = ThreadpoolController()
    ours = [
        library["filepath"]
        for library in controller.info()
        if library["user_api"] == "blas" and _is_numpys(Path(library["filepath"]))
    ]
    controller.select(filepath=ours).limit(limits=1)


def _is_numpys(path: Path) -> bool:
    return any(part == _OWNER or part.startswith(f"{_OWNER}.") for part in path.parts)
