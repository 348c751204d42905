"""What a caller made of recordings does when the connection breaks, and when it is back.

It stops playing, as a person hears nothing more; once back it says how much it had played, so that
the agent knows what was heard. What it says meanwhile is lost.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from agent.client import events as ev

from .playback import Position, SimulatedPlayback
from .spoken_turn import SpokenTurn


class Truncating(Protocol):
    """What is needed of a call."""

    async def truncate(self, item_id: str, audio_end_ms: int) -> None: ...


class Gap:
    """Belongs to one caller."""

    def __init__(
        self,
        call: Truncating,
        speaker: SimulatedPlayback,
        exchanges: Sequence[SpokenTurn],
        open_replies: dict[str, Any],
    ) -> None:
        self.num_resumed = 0
        self.num_restarted = 0
        """Another call began: the agent has forgotten all."""
        self._call = call
        self._speaker = speaker
        self._exchanges = exchanges
        self._open_replies = open_replies
        self._stopped: Position | None = None
        """Where the loudspeaker was stopped."""

    async def take(self, event: ev.Reconnecting | ev.Resumed | ev.Restarted) -> bool:
        """Returns whether there is something to wait for: the connection, or a reply."""
        match event:
            case ev.Reconnecting(at_ns=at_ns):
                self._stopped = self._speaker.flush(at_ns) or self._stopped
                self._open_replies.clear()
                for exchange in self._exchanges:
                    exchange.account(self._speaker)
                return True
            case ev.Resumed(will_answer=will_answer):
                self.num_resumed += 1
                stopped, self._stopped = self._stopped, None
                if stopped is not None:
                    await self._call.truncate(stopped.item_id, stopped.played_ms)
                return will_answer
            case ev.Restarted():
                self.num_restarted += 1
                self._stopped = None
                return False
