"""Log-probability that the caller's message is over, by a small model of this process.

No chat API returns the probabilities of a prompt. Where a model on another server answers and there
is a smaller one in this process, that one reads the caller's words as well, in a conversation of
its own: a fixed prompt, which all calls share in the engine's cache, the last exchange, and the
words as far as they are known.

The fixed prompt is one with which the end-of-turn decision was fitted, not the agent's. Of 15
complete sentences SmolLM2 135M says in the mean that they end with a log-probability of -0.77
behind it, -0.81 with an exchange between, and -1.27 as first words behind the prompt of the preset
`remote` (2026-11-27); of 15 unfinished ones it says less than -7 each time.

The score is an aid. It is computed beside the requests to the server, which never wait for it; each
request replaces the one before; and where it fails or comes late there is none, and the end of the
turn is decided by sound and words.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from agent.errors import StageError
from agent.session.ports.stage_ports import (
    ChatMessage,
    ChatPort,
    OnMessageEnd,
    ScoresMessageEnd,
)

MAX_SCORE_S: Final = 1.0
"""Longest wait for a score. The longest ordinary wait for the end of a turn, by `auto`, is as long:
what comes later decides nothing, and the caller may have begun the next utterance."""

NUM_MESSAGES: Final = 2
"""Messages before the caller's words: what the agent asked decides what a whole answer is. With
eight exchanges more a score differs by 0.1 in the mean, and every prompt is longer."""

MAX_CHARS: Final = 400
"""Last characters of each of these messages. A question stands at the end of what the agent said;
a reply of 400 characters takes half a minute to speak."""

_log = logging.getLogger(__name__)


class ScoringChat(ChatPort, ScoresMessageEnd, Protocol):
    """A chat that scores the end of messages: one with an engine of this process."""


class MessageEndScorer:
    """Scores of one call's messages. One event loop; `close` ends its work."""

    def __init__(self, open_chat: Callable[[], ScoringChat], is_ready: Callable[[], bool]) -> None:
        """`open_chat`: opens a conversation with the fixed prompt. `is_ready`: the model is there;
        nothing waits for one that is being loaded."""
        self._open_chat = open_chat
        self._is_ready = is_ready
        self._chat: ScoringChat | None = None
        self._tell: OnMessageEnd | None = None
        self._request: tuple[tuple[ChatMessage, ...], str] | None = None
        """Messages and words of the newest request; None once it is answered or dropped."""
        self._messages: tuple[ChatMessage, ...] | None = ()
        """Messages that the conversation has; None: not known."""
        self._works: set[asyncio.Task[None]] = set()
        """The newest request's, and those that are being cancelled. Ended by `close`."""
        self._reading = asyncio.Lock()

    def watch(self, tell: OnMessageEnd) -> None:
        """Call `tell` from now on; nothing is computed before."""
        self._tell = tell

    def request(self, history: Sequence[ChatMessage], words: str) -> None:
        """Score these words as the message behind `history`, in place of what was requested before;
        without words, only compute the prompt. Returns at once."""
        wanted = last_exchange(history), words
        if words and wanted == self._request:
            return
        self.drop()
        if self._tell is not None and self._is_ready():
            self._request = wanted
            work = asyncio.get_running_loop().create_task(self._answer(*wanted))
            self._works.add(work)
            work.add_done_callback(self._works.discard)

    def drop(self) -> None:
        """No score from now on until the next request: the words are outdated, or another model
        answers."""
        self._request = None
        for work in self._works:
            work.cancel()

    async def close(self) -> None:
        """Drop what was requested, and close the conversation. Does nothing the second time."""
        self.drop()
        if self._works:
            await asyncio.wait(self._works)
        chat, self._chat = self._chat, None
        if chat is not None:
            await chat.close()

    async def _answer(self, messages: tuple[ChatMessage, ...], words: str) -> None:
        try:
            # Without words nobody waits, and the first prompt takes longest.
            async with asyncio.timeout(MAX_SCORE_S if words else None), self._reading:
                await self._read(messages, words)
        except TimeoutError:
            self._request = None
        except StageError:  # the model's own stage says why
            self._request = None
        except Exception:
            self._request = None
            _log.exception("the smaller model could not score the caller's words")

    async def _read(self, messages: tuple[ChatMessage, ...], words: str) -> None:
        """Raises StageError."""
        if self._chat is None:
            self._chat = self._open_chat()
            self._chat.watch_message_end(self._scored)
        if messages != self._messages:
            self._messages = None
            await self._chat.reset(messages)
            self._messages = messages
        await self._chat.preview(words)

    def _scored(self, words: str, log_prob: float) -> None:
        request = self._request
        if request is not None and request[1] == words and self._tell is not None:
            self._request = None
            self._tell(words, log_prob)


def last_exchange(history: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The newest messages with words, without calls and their results, shortened. Looks at the end
    of the history only."""
    found: list[ChatMessage] = []
    for message in reversed(history):
        if len(found) == NUM_MESSAGES:
            break
        text = message.text[-MAX_CHARS:].strip()
        if message.role in ("user", "assistant") and text:
            found.append(ChatMessage(message.role, text))
    return tuple(reversed(found))
