"""Settings of every test."""

import importlib.util

# Machines that are lent for an hour have pytest, and no way to install the rest.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # The same examples in every run: a test that fails for one person fails for all. No deadline:
    # machines are slow now and then, and times are no business of tests.
    settings.register_profile("same", derandomize=True, deadline=None)
    settings.load_profile("same")
