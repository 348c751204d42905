"""State directory: HALFSEC_HOME, else ~/.halfsec."""

import os
from collections.abc import Mapping
from pathlib import Path


def halfsec_home(env: Mapping[str, str] | None = None) -> Path:
    """The directory of keys, models and the turn store: HALFSEC_HOME, else ~/.halfsec."""
    named = (os.environ if env is None else env).get("HALFSEC_HOME")
    return Path(named or "~/.halfsec").expanduser()
