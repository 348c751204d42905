"""The language model of the service, and the conversations that sessions have with it.

The engine owns its thread and survives a step that raises. One that hangs is abandoned and loaded
anew; the conversations it held are rebuilt in the new one from the items of the session.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

import llm_engine
from latency_budget.marks import MarkName
from latency_budget.turn import TurnId

from .errors import StageError
from .notices import Usage
from .ports import ChatMessage, OnMark, ReplyToken

PREPARE_TIMEOUT_S: Final = 10.0
"""Longest wait for the engine to take in a message. It only notes it; prefill comes later."""

_log = logging.getLogger(__name__)
