"""Fuzz targets: one module each, which ends in its `TARGET`."""

from collections.abc import Mapping
from typing import Final

TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "realtime_events": ("agent",),
    "carrier_frames": ("agent",),
    "audiosocket_messages": ("agent",),
    "carrier_webhooks": ("agent",),
    "websocket_bytes": ("agent", "websockets"),
    "http_requests": ("agent", "h11"),
    "http_bodies": ("agent", "llm_engine"),
    "http_forms": ("agent", "python_multipart"),
    "sound_files": ("asr", "soundfile", "miniaudio"),
    "gguf_files": ("llm_engine",),
    "model_directories": ("llm_engine",),
    "remote_replies": ("agent",),
    "settings_files": ("agent", "tomllib"),
}
"""Targets, each with the packages whose lines guide it: new ones reached make an input worth
keeping."""

PLANTED: Final = ("planted_faults", "planted_leak")
"""Targets with faults, by which the runner is tested."""
