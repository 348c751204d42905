"""OpenAI Realtime, general release, as a pure protocol."""

from .protocol import RealtimeProtocol

__all__ = ["RealtimeProtocol"]
