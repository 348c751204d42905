"""Interface of what a `RemoteChat` asks for replies: a server, or the chat model of a plug-in."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from .completion_chunks import Chunk


class ReplySource(Protocol):
    """A stateless language model. Belongs to one event loop; shared by all calls."""

    subject: str
    """Subject of the sentences of which `RemoteError.reason` is the predicate."""
    timeout_s: float
    """Longest wait for the first token, and between two."""
    caches_prefix: bool
    """It keeps what it has computed of a prompt, so that words can be sent ahead."""

    @property
    def problem(self) -> str | None:
        """Why it can't be used at present; None: it can. It may recover."""
        ...

    async def start(self) -> None:
        """Prepare for replies. Raises where this can never work."""
        ...

    async def watch(self) -> None:
        """Check the source until cancelled."""
        ...

    async def close(self) -> None: ...

    def reply(
        self, body: Mapping[str, Any], *, first_token_s: float, is_last_resort: bool
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a reply to a request in OpenAI's form; its first chunk is one that the model has
        generated, its last one has a finish reason. `ReplyLimit` ends it, whatever the model does.

        Raises RemoteError. `is_last_resort` False: something else can answer instead, so there is
        no waiting for a source that is full.
        """
        ...

    async def complete(self, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> str:
        """A whole reply, outside of a turn. Raises RemoteError."""
        ...

    async def read_ahead(self, body: Mapping[str, Any]) -> None:
        """Have a prompt computed that a reply will begin with. Raises RemoteError."""
        ...
