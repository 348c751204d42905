"""The Hugging Face hub as far as the choice of a preset needs it: can its models be had?"""

import os
import urllib.error
import urllib.request
from typing import Final

from agent.config.layers import load_config

from .catalogue import HubReference, ModelStore, ModelStoreError, needed_models

_HUB_URL: Final = "https://huggingface.co"
_TIMEOUT_S: Final = 5.0
"""Longest wait for the hub. Longer: a start without a network waits in vain."""


def hub_obstacle(preset: str) -> str:
    """Why the models of a preset can't be had, in a clause; "": they are here, or the hub answers.

    Asks the hub only where a model is missing. Takes up to `_TIMEOUT_S`.
    """
    try:
        store = ModelStore()
    except ModelStoreError:
        return ""  # a damaged list is reported by what reads it next
    needed = needed_models(load_config({"agent.preset": preset}))
    from_hub = [name for name in needed if _comes_from_hub(name, store)]
    missing = [name for name in from_hub if store.presence(name) != "present"]
    problem = hub_problem() if missing else ""
    return f"{missing[0]} is not here, and {problem}" if problem else ""


def _comes_from_hub(reference: str, store: ModelStore) -> bool:
    model = store.catalogue.get(reference)
    return HubReference.parse(reference) is not None if model is None else model.hub is not None


def hub_problem() -> str:
    """Why the hub does not answer, in a clause; "": it does."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    url = os.environ.get("HF_ENDPOINT") or _HUB_URL
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_TIMEOUT_S)
    except urllib.error.HTTPError:
        return ""  # it answers
    except (OSError, ValueError):
        return f"the Hugging Face hub ({url}) does not answer"
    return ""
