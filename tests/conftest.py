"""Settings of every test."""

import atexit
import gc
import importlib.util
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.postgres import place, postgres

__all__ = ["place", "postgres"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect without Python's garbage collector, then exclude what there is from its
    collections. A million objects come and stay. To look at them again and again took 3.1 s of
    processor time in each process that runs tests, 12.8 where no test was compiled yet."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        # Else extension modules report as leaks what is there at the end.
        atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the files (`make test-all`), order them: files with slow tests
    first, and of these and the others those with the most tests. pytest-xdist counts tests alone.
    The longest files have few, and the last of them kept one process busy while none was left for
    the others."""
    if not hasattr(config, "workerinput"):
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)

    def place_of(tests: list[pytest.Item]) -> tuple[bool, int]:
        is_long = any(
            test.get_closest_marker(name) for test in tests for name in ("slow", "browser")
        )
        return not is_long, -len(tests)

    items[:] = [test for tests in sorted(files.values(), key=place_of) for test in tests]


# Without a GPU, its kernels run in Triton's interpreter. Triton looks for this when it is imported,
# whoever is the first to do so.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# As `llm_engine` has it, for tests that import torch first: it is read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The same models on every machine, whatever would be chosen for it.
os.environ.setdefault("HALFSEC_AGENT__PRESET", "embedded")

# Machines that are lent for an hour have pytest, and no way to install the rest.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # The same examples in every run: a test that fails for one person fails for all. No deadline:
    # machines are slow now and then, and times are no business of tests.
    settings.register_profile("same", derandomize=True, deadline=None)
    settings.load_profile("same")
