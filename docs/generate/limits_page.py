"""Reference of the limits: the defaults are read from the code.

A limit that an operator can change names its setting; the others are constants. Every row has a
test that shows what the client sees: `tests/test_limits_table.py`.
"""

from dataclasses import dataclass
from typing import Final

import asr
from agent.calls import stream_tokens
from agent.calls.recording import MAX_WAITING_S
from agent.codec import json_frame as frames
from agent.config.access import AccessSettings
from agent.config.schema import AsrSettings, ServiceSettings
from agent.config.telephony import TelephonySettings
from agent.config.webrtc import WebRtcSettings
from agent.http import json_body, multipart
from agent.http.auth import throttle
from agent.http.auth.client_secrets import MAX_OF_A_KEY, MAX_SECRETS
from agent.http.hardening import header_limits, http_parser, http_protocol, websocket_protocol
from agent.http.openai import concurrency_limit, speech_request
from agent.observability.live_events import MAX_LISTENERS
from agent.realtime import send_queue, socket
from agent.realtime.protocol import fields, items, parse, protocol, response_create
from agent.realtime.protocol import session_update as updates
from agent.server import event_loop
from agent.session.api import conversation
from agent.stages import audio_pace, openai_tools
from agent.telephony import endpoint, pending_streams, webhooks
from agent.telephony.carriers import json_media_stream
from agent.telephony.carriers.webhook import MAX_ESCAPES, TOLERANCE_S
from agent.webrtc import endpoint as webrtc_endpoint
from agent.webrtc import offer, sctp_guard
from agent.webrtc import peer as webrtc_peer
from agent.webrtc import transport as webrtc
from asr.audio.files import FileLimits

_ACCESS: Final = AccessSettings()
_SERVICE: Final = ServiceSettings()
_ASR: Final = AsrSettings()
_TELEPHONY: Final = TelephonySettings()

_HEAD: Final = """\
# Limits

They hold for every caller, also on an open server. The operator can change those with a setting
(0: no limit); the others protect the calls in progress. An error leaves the session as it was.
Clients that reconnect by themselves do so after 1011, 1012 (the server stops) and 1013 (a part is
being restarted), and not after 1000, 1007, 1008 and 1009. Behind a reverse proxy set
`access.trusted_proxies`, or all callers count as one address. An IPv6 network (/64) is one address.

The defaults on this page are read from the code. `halfsec bench abuse DIR` attacks a server of its
own while it holds a call, and reports what the caller noticed.
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """One row of the table."""

    name: str
    default: str
    effect: str
    """What the client sees beyond it."""


def _number(value: float) -> str:
    """Multiples of 1 MiB as MiB, thousands with a space."""
    if value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value // (1 << 20):.0f} MiB"
    return f"{value:,.0f}".replace(",", " ")


def _seconds(value: float) -> str:
    return f"{value:g} s"


NETWORK: Final = (
    Limit(
        "connections at once",
        f"`agent.max_sessions` + {http_protocol.SPARE_CONNECTIONS}",
        "the connection that has waited longest for a request is closed; where all are calls, the "
        "new one",
    ),
    Limit(
        "connections from an address, `access.connections_per_address`",
        _number(_ACCESS.connections_per_address),
        "the same among its own connections",
    ),
    Limit(
        "new connections from an address, `access.connections_per_s`",
        f"{_ACCESS.connections_per_s} a second",
        "a burst of twice as many is allowed; more are closed before anything is read",
    ),
    Limit(
        "requests from an address, `access.requests_per_s`",
        f"{_ACCESS.requests_per_s} a second",
        "a burst of twice as many is allowed; responses to more are delayed",
    ),
    Limit(
        "proxies that may name other addresses, `access.trusted_proxies`",
        ", ".join(_ACCESS.trusted_proxies) or "none",
        "`X-Forwarded-For` of all others is ignored",
    ),
    Limit("time for a TLS handshake", _seconds(event_loop.TLS_TIMEOUT_S), "closed"),
    Limit("time for a request's head", _seconds(http_protocol.REQUEST_TIMEOUT_S), "closed"),
    Limit("a request's head", f"{header_limits.MAX_HEAD_BYTES // 1024} KiB", "400"),
    Limit(
        "its headers",
        _number(header_limits.MAX_HEADERS),
        f"431; for a socket beyond 128, 400; beyond {http_parser.MAX_HEAD_LINES} lines 400, and "
        "closed",
    ),
    Limit("path and query", f"{header_limits.MAX_TARGET_BYTES // 1024} KiB", "414"),
    Limit(
        "lengths and hosts of a request",
        "one",
        "400 (501 for encodings other than chunks), and closed",
    ),
    Limit("`Authorization` and `Origin` headers", "one of each", "400"),
    Limit(
        "a message in the log that strangers cause",
        "the 1st, 2nd, 4th, 8th, ...",
        "nothing",
    ),
    Limit(
        "chunks of a body",
        f"{_number(http_parser.MAX_SMALL_CHUNKS)}, more where they have "
        f"{http_parser.MIN_CHUNK_BYTES} bytes on average",
        "400, and closed",
    ),
    Limit(
        "trailer of a body; extensions of a chunk",
        f"{http_parser.MAX_TRAILER_BYTES // 1024} KiB; {http_parser.MAX_TRAILER_BYTES // 1024} KiB",
        "400, and closed",
    ),
    Limit(
        "a body that goes on after its response",
        f"{_number(http_parser.MAX_DISCARDED_BYTES)}, {_number(http_parser.MAX_SMALL_CHUNKS)} "
        f"chunks, {_seconds(http_protocol.REQUEST_TIMEOUT_S)}",
        "closed",
    ),
    Limit("time to read on in a response", _seconds(http_protocol.STALL_TIMEOUT_S), "closed"),
)

HTTP: Final = (
    Limit(
        "a JSON body",
        _number(json_body.MAX_BODY_BYTES),
        "413; 415 where its type is not JSON",
    ),
    Limit("its brackets and commas", _number(frames.MAX_MARKS), "400"),
    Limit(
        "characters of a number in it, with a fraction or an exponent",
        _number(frames.MAX_NUMBER_CHARS),
        "400",
    ),
    Limit(
        "all tools of a chat request",
        f"{_number(openai_tools.MAX_TOOLS_CHARS)} characters",
        "400",
    ),
    Limit("time for a body", _seconds(json_body.BODY_TIMEOUT_S), "408"),
    Limit("bodies held at once", _number(json_body.MAX_HELD_BYTES), "503"),
    Limit(
        "of these, those of one client",
        f"as much as is free; {_number(json_body.MAX_HELD_BYTES // 2)} alone",
        "503",
    ),
    Limit("an upload", _number(multipart.MAX_FORM_BYTES), "413"),
    Limit("time for an upload", _seconds(multipart.UPLOAD_TIMEOUT_S), "408"),
    Limit(
        f"rate of an upload, after {_seconds(multipart.GRACE_S)}",
        f"at least {_number(multipart.MIN_UPLOAD_RATE)} a second",
        "408",
    ),
    Limit("charsets of an upload's texts", "UTF-8 and ISO 8859-1", "415"),
    Limit(
        "length of a decoded recording, `asr.max_file_s`",
        f"{_number(_ASR.max_file_s)} s; {FileLimits(_ASR.max_file_s).max_channels} channels",
        "400; in a stream an `error` event",
    ),
    Limit("characters to read aloud", _number(speech_request.MAX_INPUT_CHARS), "400"),
    Limit(
        "uploads at once; texts to read aloud",
        f"{concurrency_limit.MAX_AT_ONCE}; {concurrency_limit.MAX_AT_ONCE}",
        "503 and `Retry-After`",
    ),
    Limit(
        "of these, those of one key or address",
        f"as many as are free; {concurrency_limit.MAX_OF_ONE} alone",
        "503 and `Retry-After`",
    ),
    Limit("listeners at `/v1/latency/events`", _number(MAX_LISTENERS), "503"),
    Limit(
        "a recording of a call, `agent.record_mb`",
        f"{_SERVICE.record_mb} MB",
        "the recording ends; the call does not",
    ),
    Limit("sound that waits for the disk", _seconds(MAX_WAITING_S), "a hole in the recording"),
    Limit(
        "wrong keys from an address",
        f"{throttle.FREE_TRIES}, one more every {throttle.FORGET_S:g} s",
        "401 after 2 s; 429 where 32 wait",
    ),
    Limit(
        "client secrets; of one key",
        f"{_number(MAX_SECRETS)}; {_number(MAX_OF_A_KEY)}",
        "429; an expired secret: 401",
    ),
)

CALLS: Final = (
    Limit(
        "calls at once, `agent.max_sessions`",
        _number(_SERVICE.max_sessions),
        "503 and `Retry-After`",
    ),
    Limit("calls of a key, `access.calls_per_key`", "all", "429 and `Retry-After`"),
    Limit("calls from an address, `access.calls_per_address`", "all", "429 and `Retry-After`"),
    Limit(
        "length of a call, `agent.session_limit_s`",
        _seconds(_SERVICE.session_limit_s),
        "error `session_expired`, close 1000",
    ),
    Limit(
        "a client that sends nothing, `access.idle_s`",
        _seconds(_ACCESS.idle_s),
        "close 1000: the client sent nothing for too long",
    ),
    Limit("a client that does not answer pings", "20 s + 20 s", "close 1011"),
    Limit("a message", _number(frames.MAX_FRAME_BYTES), "close 1009"),
    Limit("compression", "none", "`permessage-deflate` is not taken up"),
    Limit(
        "messages",
        f"{socket.MESSAGES_PER_S} a second after the first {_number(socket.MESSAGES_AT_ONCE)}",
        "processed later; a change of the session, a response, a commit, a resumption counts as "
        f"{socket.WORK}, {socket.CHARS_PER_MESSAGE} characters of what is not audio as one more",
    ),
    Limit(
        "a call that is resumed",
        "has what is left of its messages and audio",
        "processed later; at another server of a fleet it begins anew",
    ),
    Limit(
        "frames of messages, pings among them",
        f"{_number(websocket_protocol.FRAMES_PER_S)} a second after the first "
        f"{_number(websocket_protocol.FRAMES_AT_ONCE)}",
        "read later",
    ),
    Limit(
        "messages that the call has not processed",
        f"{websocket_protocol.MAX_WAITING_BYTES >> 20} MiB",
        "not read further until it has; dropped but for the oldest 64 KiB when the client hangs up",
    ),
    Limit(
        "text that is not UTF-8, frames that break RFC 6455",
        "none",
        "close 1007, 1002",
    ),
    Limit(
        "audio ahead of real time, `access.burst_s`",
        _seconds(_ACCESS.burst_s),
        "processed in real time; six minutes more (24 kHz PCM) wait without loss, then nothing is "
        "read, pings neither, and a client that needs its pongs may hang up",
    ),
    Limit(
        "the same while other calls are in progress",
        _seconds(audio_pace.BURST_S),
        f"the rest is taken {audio_pace.FASTEST:g} times as fast as it was spoken, without partial "
        "transcripts; clients with extensions get `halfsec.notice`",
    ),
    Limit(
        "audio without a commit",
        _seconds(asr.ListenerConfig().max_buffer_s),
        "error `input_audio_buffer_full`, until a commit or a clear",
    ),
    Limit(
        "what waits for a client, and how long",
        f"{_number(send_queue.MAX_BYTES)}; {_seconds(socket.SEND_TIMEOUT_S)}",
        "at half of it nothing more is read; then close 1008",
    ),
)

EVENTS: Final = (
    Limit("JSON: levels", _number(frames.MAX_DEPTH), "error `invalid_event`"),
    Limit("JSON: brackets and commas", _number(frames.MAX_MARKS), "error `invalid_event`"),
    Limit(
        "JSON: characters of a number with a fraction or an exponent",
        _number(frames.MAX_NUMBER_CHARS),
        "error `invalid_event`",
    ),
    Limit(
        "items in a conversation",
        _number(conversation.MAX_ITEMS),
        "error `conversation_full`; for speech the oldest items are removed",
    ),
    Limit("characters of a text", _number(fields.MAX_TEXT_CHARS), "error `invalid_value`"),
    Limit("parts of a message", _number(items.MAX_PARTS), "error `invalid_value`"),
    Limit(
        "characters of an id; of an `event_id`",
        f"{fields.MAX_ID_CHARS}; {parse.MAX_EVENT_ID_CHARS}",
        "error `invalid_value`",
    ),
    Limit(
        "characters of instructions",
        _number(updates.MAX_INSTRUCTIONS_CHARS),
        "error `invalid_value`",
    ),
    Limit(
        "tools; all of them as JSON",
        f"{updates.MAX_TOOLS}; {updates.MAX_TOOLS_BYTES // 1024} KiB",
        "error `invalid_value`",
    ),
    Limit("`max_output_tokens`", _number(updates.MAX_OUTPUT_TOKENS), "error `invalid_value`"),
    Limit(
        "items in `input`; keys in `metadata`",
        f"{response_create.MAX_INPUT_ITEMS}; {response_create.MAX_METADATA_KEYS}",
        "error `invalid_value`",
    ),
    Limit(
        "`session.update`s that wait for their answer",
        _number(protocol.MAX_PENDING_UPDATES),
        "error `rate_limit_exceeded`",
    ),
)

TELEPHONE: Final = (
    Limit(
        "a message of a carrier's stream",
        f"{websocket_protocol.MAX_PHONE_FRAME_BYTES // 1024} KiB",
        "close 1009",
    ),
    Limit(
        "its JSON: brackets and commas", _number(json_media_stream.MAX_FRAME_MARKS), "close 1008"
    ),
    Limit(
        "its messages up to the one that identifies the call; all of these; time for that",
        f"{endpoint.MAX_OPENING}; {endpoint.MAX_OPENING_CHARS // 1024} KiB; "
        f"{_seconds(endpoint.OPEN_S)}",
        "close 1008",
    ),
    Limit(
        "streams without a key that have not identified their call yet",
        _number(pending_streams.MAX_STREAMS),
        "close 1008 for the oldest of the address that has most of them",
    ),
    Limit(
        "telephone calls that a webhook announced; time for their streams",
        f"as many as there are free lines; {_seconds(stream_tokens.TOKEN_S)}",
        "callers hear that all lines are busy; an older token opens nothing",
    ),
    Limit(
        "a carrier's webhook; time for all of it",
        f"{webhooks.MAX_BODY_BYTES // 1024} KiB; {_seconds(webhooks.BODY_TIMEOUT_S)}",
        "413; 408",
    ),
    Limit("characters of a carrier's form written as %XX", _number(MAX_ESCAPES), "400"),
    Limit("difference of a carrier's clock", _seconds(TOLERANCE_S), "403"),
    Limit(
        "signed webhooks that are remembered",
        _number(webhooks.MAX_ANSWERED),
        "a repeated one, however it is written, gets the same answer; the oldest is forgotten",
    ),
    Limit(
        "numbers that a key may have called, `telephony.calls_to`",
        ", ".join(_TELEPHONY.calls_to) or "none",
        "403",
    ),
    Limit(
        "outbound calls that ring at once for one key, `telephony.ringing_per_key`",
        _number(_TELEPHONY.ringing_per_key),
        "429 and `Retry-After`",
    ),
    Limit(
        "time that an outbound call rings, `telephony.ring_s`",
        _seconds(_TELEPHONY.ring_s),
        "it is given up",
    ),
    Limit(
        "length of a telephone call, `telephony.limit_s`",
        _seconds(_TELEPHONY.limit_s),
        "a notice half a minute before, then close 1000; Twilio itself ends outbound calls 30 s "
        "later",
    ),
    Limit(
        "a carrier that sends nothing, `telephony.silent_s`",
        _seconds(_TELEPHONY.silent_s),
        "close 1000: the client sent nothing for too long",
    ),
)

WEBRTC: Final = (
    Limit(
        "an SDP offer", f"{offer.MAX_SDP_BYTES >> 10} KiB, {_number(offer.MAX_LINES)} lines", "413"
    ),
    Limit("a request to open a call", _number(webrtc_endpoint.MAX_BODY_BYTES), "413"),
    Limit(
        "requests to open a call that are read at once",
        f"{concurrency_limit.MAX_AT_ONCE}, of a client {concurrency_limit.MAX_OF_ONE}",
        "503",
    ),
    Limit("candidates of an offer", _number(offer.MAX_CANDIDATES), "the others are not checked"),
    Limit(
        "time until a WebRTC client is connected, `webrtc.connect_s`",
        _seconds(WebRtcSettings().connect_s),
        "the connection is closed, and the line is free",
    ),
    Limit(
        "addresses of a client that are checked",
        _number(webrtc_peer.MAX_REMOTE_CANDIDATES),
        "checks from others are dropped",
    ),
    Limit(
        "sources of RTP",
        "1",
        "packets of others are dropped, until it has been silent for "
        f"{_seconds(webrtc_peer.SILENT_S)}",
    ),
    Limit(
        "datagrams that wait",
        _number(webrtc_peer.MAX_DATAGRAMS),
        "more are dropped, as is all that comes from no candidate of the client",
    ),
    Limit(
        "a datagram, direct or relayed",
        f"{_number(webrtc_peer.MAX_DATAGRAM_BYTES)} bytes",
        "it is dropped",
    ),
    Limit(
        "datagrams a second of a client's address in use, and of its others; STUN from other hosts",
        f"{_number(webrtc_peer.MAX_CLIENT_HZ)}; {_number(webrtc_peer.MAX_STRANGERS_HZ)}",
        "more are dropped",
    ),
    Limit(
        "records of DTLS in these datagrams",
        "each counts as a datagram",
        "a datagram with more than there is room for is dropped",
    ),
    Limit(
        "RTCP datagrams a second",
        _number(webrtc_peer.MAX_RTCP_HZ),
        "more are dropped, and no NACK is read: nothing is sent again",
    ),
    Limit(
        "chunks a second on the data channel: DATA; others, and of these at once",
        f"{_number(sctp_guard.MAX_DATA_HZ)}; {_number(sctp_guard.MAX_CONTROL_HZ)}, "
        f"{_number(sctp_guard.MAX_CONTROL_AT_ONCE)}",
        "the packet is dropped, and its client sends it again",
    ),
    Limit("a message on the data channel", f"{webrtc.MAX_MESSAGE_BYTES >> 10} KiB", "`error`"),
    Limit(
        "fragments of messages that wait for the rest",
        _number(sctp_guard.MAX_FRAGMENTS),
        "the call ends with an `error`",
    ),
    Limit(
        "packets of the data channel behind one that is missing",
        _number(sctp_guard.MAX_MISORDERED),
        "the call ends with an `error`",
    ),
    Limit(
        "data channels of a call",
        f"{sctp_guard.MAX_CHANNELS}, label and subprotocol {sctp_guard.MAX_OPEN_BYTES >> 10} KiB",
        "the call ends with an `error`",
    ),
    Limit(
        "messages on data channels other than `oai-events`",
        _number(sctp_guard.MAX_IGNORED),
        "the call ends with an `error`",
    ),
    Limit(
        "messages of the data channel that are not processed",
        f"{_number(webrtc.MAX_MESSAGES)}, {_number(webrtc.MAX_INBOX_BYTES)}",
        "the call ends with an `error`",
    ),
)

GROUPS: Final = {
    "Connections": NETWORK,
    "HTTP": HTTP,
    "Calls": CALLS,
    "Events": EVENTS,
    "WebRTC": WEBRTC,
    "Telephone": TELEPHONE,
}


def limits() -> dict[str, Limit]:
    """All limits by name."""
    return {limit.name: limit for group in GROUPS.values() for limit in group}


def page() -> str:
    """Markdown of the page."""
    parts = [_HEAD]
    for title, group in GROUPS.items():
        parts += [f"## {title}\n", "| limit | default | beyond it |", "| --- | --- | --- |"]
        parts += [f"| {limit.name} | {limit.default} | {limit.effect} |" for limit in group]
        parts.append("")
    return "\n".join(parts)
