"""Private names of aiortc and aioice that `peer.py` and `sctp_guard.py` read and set, and a check
that they exist.

A name that is gone raises nothing where it is only set: a limit would be off, and no test of a
deployment would show it. So it is looked for once, where the library is loaded.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterable
from typing import Any, Final

METHODS: Final = {
    "aiortc.RTCPeerConnection": ("_RTCPeerConnection__connect",),
    "aiortc.RTCRtpReceiver": ("_send_rtcp",),
    "aiortc.RTCDtlsTransport": ("_handle_rtcp_data", "_handle_rtp_data", "_recv_next"),
    "aiortc.RTCSctpTransport": (
        "_data_channel_receive",
        "_handle_data",
        "_mark_received",
        "_receive_chunk",
        "_receive_data_chunk",
        "_receive_forward_tsn_chunk",
        "_receive_sack_chunk",
        "_send_chunk",
    ),
    "aiortc.jitterbuffer.JitterBuffer": ("add",),
    "aioice.ice.Connection": ("get_component_candidates", "data_received", "check_incoming"),
    "aioice.ice.CandidatePair": ("State", "remote_addr"),
    "aioice.ice.StunProtocol": ("datagram_received",),
}
"""Methods by class."""

ATTRIBUTES: Final = {
    "aiortc.RTCPeerConnection": ("_RTCPeerConnection__closeTask",),
    "aiortc.RTCRtpReceiver": (
        "_RTCRtpReceiver__decoder_queue",
        "_RTCRtpReceiver__jitter_buffer",
        "_RTCRtpReceiver__rtcp_task",
        "_RTCRtpReceiver__remote_streams",
        "_RTCRtpReceiver__active_ssrc",
        "_RTCRtpReceiver__lsr",
        "_RTCRtpReceiver__lsr_time",
    ),
    "aiortc.RTCDtlsTransport": ("_data_receiver", "_rtp_router", "_ssl", "encrypted"),
    "aiortc.rtcdtlstransport.RtpRouter": ("ssrc_table", "payload_type_table"),
    "aiortc.RTCIceGatherer": ("_connection",),
    "aiortc.RTCIceTransport": ("_connection",),
    "aiortc.RTCSctpTransport": (
        "_advertised_rwnd",
        "_data_channels",
        "_inbound_streams",
        "_last_received_tsn",
        "_outbound_queue",
        "_sack_duplicates",
        "_sack_misordered",
        "_sent_queue",
    ),
    "aiortc.rtcsctptransport.InboundStream": ("reassembly",),
    "aioice.ice.CandidatePair": ("state",),
    "aioice.ice.Connection": (
        "_check_list",
        "_nominated",
        "_protocols",
        "_queue",
        "_remote_candidates",
        "stun_server",
        "turn_server",
    ),
    "aioice.ice.StunProtocol": ("receiver",),
    "aioice.turn.TurnClientMixin": ("receiver",),
    "aioice.candidate.Candidate": ("_network_host",),
}
"""Attributes by the class whose `__init__` sets them."""


def missing() -> list[str]:
    """Names that this version of the libraries lacks, as `module.Class.name`."""
    found: list[str] = []
    for path, names in METHODS.items():
        found += _absent(path, names, dir)
    for path, names in ATTRIBUTES.items():
        found += _absent(path, names, _set_by_init)
    return found


def _absent(path: str, names: tuple[str, ...], known: Callable[[Any], Iterable[str]]) -> list[str]:
    module, _, name = path.rpartition(".")
    existing: set[str] = set()
    with contextlib.suppress(ImportError, AttributeError):
        existing.update(known(getattr(importlib.import_module(module), name)))
    return [f"{path}.{each}" for each in names if each not in existing]


def _set_by_init(of_class: Any) -> Iterable[str]:
    """Names in the code of `__init__`: most classes can't be made without a connection."""
    code = getattr(of_class.__init__, "__code__", None)
    return () if code is None else code.co_names
