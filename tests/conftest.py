"""Settings of every test."""

import importlib.util
import os
from pathlib import Path

from tests.support.postgres import place, postgres

__all__ = ["place", "postgres"]

# Without a GPU, its kernels run in Triton's interpreter. Triton looks for this when it is imported,
# whoever is the first to do so.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same models on every machine, whatever would be chosen for it.
os.environ.setdefault("HALFSEC_AGENT__PRESET", "embedded")

# Machines that are lent for an hour have pytest, and no way to install the rest.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # The same examples in every run: a test that fails for one person fails for all. No deadline:
    # machines are slow now and then, and times are no business of tests.
    settings.register_profile("same", derandomize=True, deadline=None)
    settings.load_profile("same")
