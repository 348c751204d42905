"""A disk that is full, for this process: the kernel refuses to let a file grow beyond a limit."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def files_limited_to(num_bytes: int) -> Iterator[None]:
    """Files of this process grow to `num_bytes` at most. A write beyond writes what fits; the next
    raises OSError (EFBIG, as ENOSPC of a full disk; Python ignores the signal)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
