"""Limits in the documentation: defaults are read from the code, and every row has a test."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from agent.codec import json_frame as frames
from agent.realtime.protocol import fields, items, parse, response_create
from agent.realtime.protocol import session_update as updates
from agent.session.api.server_events import Problem
from docs.generate import limits_page
from tests.support.wire.wire_frames import make

ROOT: Final = Path(__file__).resolve().parents[1]

SHOWN_BY: Final[dict[str, str]] = {
    "connections at once": (
        "agent/http/hardening/test_http_protocol.py::"
        "test_longest_idle_connection_is_evicted_at_the_limit"
    ),
    "connections from an address, `access.connections_per_address`": (
        "agent/http/hardening/test_http_protocol.py::"
        "test_address_at_its_limit_evicts_its_own_connection"
    ),
    "new connections from an address, `access.connections_per_s`": (
        "agent/http/hardening/test_http_protocol.py::"
        "test_connection_above_the_rate_is_closed_unread"
    ),
    "requests from an address, `access.requests_per_s`": (
        "agent/http/hardening/test_http_protocol.py::test_pipelined_requests_are_rate_limited"
    ),
    "proxies that may name other addresses, `access.trusted_proxies`": (
        "agent/http/hardening/test_limits_process.py::test_calls_per_address_are_limited"
    ),
    "time for a TLS handshake": "agent/http/auth/test_tls.py::test_silent_tls_connection_is_closed",
    "time for a request's head": (
        "agent/http/hardening/test_http_protocol.py::test_connection_without_a_request_is_closed"
    ),
    "a request's head": (
        "agent/http/hardening/test_header_limits.py::test_oversized_headers_are_refused"
    ),
    "its headers": "agent/http/hardening/test_header_limits.py::test_oversized_headers_are_refused",
    "chunks of a body": (
        "agent/http/hardening/test_http_parser.py::test_too_many_small_chunks_are_refused"
    ),
    "trailer of a body; extensions of a chunk": (
        "agent/http/hardening/test_http_parser.py::test_long_trailers_and_extensions_are_refused"
    ),
    "a body that goes on after its response": (
        "agent/http/hardening/test_http_parser.py::"
        "test_endless_body_after_the_response_ends_the_connection"
    ),
    "path and query": (
        "agent/http/hardening/test_header_limits.py::test_oversized_headers_are_refused"
    ),
    "`Authorization` and `Origin` headers": (
        "agent/http/hardening/test_header_limits.py::test_two_credentials_are_refused"
    ),
    "lengths and hosts of a request": (
        "agent/http/hardening/test_header_limits.py::test_request_smuggling_is_refused"
    ),
    "a JSON body": "agent/http/openai/test_chat_bad_input.py::test_endless_body_is_refused",
    "its brackets and commas": (
        "agent/http/openai/test_chat_bad_input.py::"
        "test_bad_requests_are_refused_without_affecting_calls"
    ),
    "characters of a number in it, with a fraction or an exponent": (
        "agent/http/test_json_body.py::test_long_numbers_are_refused"
    ),
    "all tools of a chat request": (
        "agent/stages/test_openai_tools.py::test_what_is_refused_names_the_field"
    ),
    "time for a body": "agent/http/openai/test_chat_bad_input.py::test_endless_body_is_refused",
    "bodies held at once": (
        "agent/http/openai/test_chat_bad_input.py::test_bodies_above_the_memory_limit_get_503"
    ),
    "of these, those of one client": (
        "agent/http/test_json_body.py::test_one_client_leaves_room_to_others"
    ),
    "an upload": (
        "agent/stages/test_offline.py::test_an_endless_upload_is_read_to_the_limit_and_no_further"
    ),
    "charsets of an upload's texts": (
        "agent/http/test_multipart.py::test_unsupported_charset_is_named"
    ),
    "a message in the log that strangers cause": (
        "agent/observability/test_server_log.py::test_requests_that_are_none_do_not_fill_the_log"
    ),
    "time for an upload": "agent/stages/test_offline.py::test_one_that_never_ends_is_given_up",
    "characters to read aloud": (
        "agent/http/openai/test_speech.py::test_invalid_requests_are_refused_with_a_reason"
    ),
    "rate of an upload, after 10 s": (
        "agent/stages/test_offline.py::test_an_upload_that_comes_too_slowly_frees_its_place"
    ),
    "of these, those of one key or address": (
        "agent/stages/test_offline.py::test_one_client_leaves_places_to_others"
    ),
    "uploads at once; texts to read aloud": (
        "agent/stages/test_offline.py::test_request_above_the_limit_gets_a_retry_time"
    ),
    "time to read on in a response": (
        "agent/http/hardening/test_http_protocol.py::"
        "test_client_that_stops_reading_a_response_is_cut_off"
    ),
    "listeners at `/v1/latency/events`": (
        "agent/observability/test_live_events.py::test_too_many_listeners_are_refused"
    ),
    "a recording of a call, `agent.record_mb`": (
        "agent/calls/test_recorder.py::test_a_recording_ends_at_its_largest_size"
    ),
    "sound that waits for the disk": (
        "agent/calls/test_recorder.py::test_slow_disk_does_not_block_the_call"
    ),
    "wrong keys from an address": (
        "agent/http/auth/test_middleware.py::test_number_of_throttled_requests_is_limited"
    ),
    "client secrets; of one key": (
        "agent/http/auth/test_client_secrets.py::test_number_of_client_secrets_is_limited"
    ),
    "calls at once, `agent.max_sessions`": (
        "agent/server/test_http.py::test_many_at_once_get_no_more_lines_than_there_are"
    ),
    "calls of a key, `access.calls_per_key`": (
        "agent/server/test_keys.py::test_a_key_has_only_its_calls"
    ),
    "calls from an address, `access.calls_per_address`": (
        "agent/http/hardening/test_limits_process.py::test_calls_per_address_are_limited"
    ),
    "length of a call, `agent.session_limit_s`": (
        "agent/http/hardening/test_limits_process.py::test_calls_per_address_are_limited"
    ),
    "a client that sends nothing, `access.idle_s`": (
        "agent/http/hardening/test_attacks_network.py::test_idle_connection_is_closed_with_a_reason"
    ),
    "a client that does not answer pings": (
        "agent/http/hardening/test_http_protocol.py::"
        "test_silent_connection_is_dropped_after_the_ping_timeout"
    ),
    "a message": (
        "agent/server/test_input.py::test_a_frame_beyond_the_limit_ends_the_call_and_no_other"
    ),
    "compression": (
        "agent/http/hardening/test_attacks_network.py::test_compression_is_never_negotiated"
    ),
    "messages": (
        "agent/realtime/test_socket_limits.py::test_expensive_requests_count_as_many_messages"
    ),
    "a call that is resumed": (
        "agent/realtime/test_transport.py::"
        "test_a_client_that_resumes_has_what_is_left_of_its_limits"
    ),
    "frames of messages, pings among them": (
        "agent/http/hardening/test_websocket_protocol.py::test_frame_rate_is_limited"
    ),
    "messages that the call has not processed": (
        "agent/http/hardening/test_websocket_protocol.py::test_parsing_stops_at_the_queue_limit"
    ),
    "text that is not UTF-8, frames that break RFC 6455": (
        "agent/http/hardening/test_attacks_network.py::test_broken_frame_ends_only_its_own_call"
    ),
    "audio ahead of real time, `access.burst_s`": (
        "agent/http/hardening/test_attacks_network.py::test_endless_audio_is_read_in_real_time"
    ),
    "the same while other calls are in progress": (
        "agent/stages/test_speech_input.py::"
        "test_beside_another_call_a_fast_sender_is_told_and_has_few_passes"
    ),
    "audio without a commit": (
        "asr/test_stream_buffer.py::test_a_full_buffer_says_what_to_do_and_goes_on_after_it"
    ),
    "what waits for a client, and how long": (
        "agent/realtime/test_send_queue.py::test_client_that_stops_reading_is_disconnected"
    ),
    "JSON: levels": "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    "JSON: brackets and commas": (
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not"
    ),
    "JSON: characters of a number with a fraction or an exponent": (
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not"
    ),
    "items in a conversation": (
        "agent/session/test_api_conversation.py::"
        "test_full_conversation_takes_no_more_until_something_is_deleted"
    ),
    "characters of a text": "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    "parts of a message": "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    "characters of an id; of an `event_id`": (
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not"
    ),
    "characters of instructions": (
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not"
    ),
    "tools; all of them as JSON": (
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not"
    ),
    "`max_output_tokens`": "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    "items in `input`; keys in `metadata`": (
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not"
    ),
    "`session.update`s that wait for their answer": (
        "agent/realtime/protocol/test_session_update.py::"
        "test_too_many_unanswered_updates_are_refused"
    ),
    "a message of a carrier's stream": (
        "agent/http/hardening/test_websocket_protocol.py::test_telephone_message_size_is_limited"
    ),
    "its JSON: brackets and commas": (
        "agent/telephony/test_bad_input.py::test_a_frame_of_many_values_is_refused_unparsed"
    ),
    "its messages up to the one that identifies the call; all of these; time for that": (
        "agent/telephony/test_live.py::test_what_is_no_stream_is_closed_with_the_reason"
    ),
    "streams without a key that have not identified their call yet": (
        "agent/telephony/test_lines.py::test_many_streams_that_say_nothing_keep_no_call_out"
    ),
    "telephone calls that a webhook announced; time for their streams": (
        "agent/telephony/test_lines.py::test_who_is_announced_has_a_line"
    ),
    "a carrier's webhook; time for all of it": "agent/telephony/test_webhooks.py::test_bad_bodies",
    "characters of a carrier's form written as %XX": (
        "agent/telephony/carriers/test_webhook_input.py::"
        "test_what_is_long_to_decode_is_not_decoded_for_strangers"
    ),
    "difference of a carrier's clock": (
        "agent/telephony/carriers/test_served.py::test_a_webhook_of_the_past_is_refused"
    ),
    "signed webhooks that are remembered": (
        "agent/telephony/test_lines.py::test_old_questions_are_forgotten"
    ),
    "numbers that a key may have called, `telephony.calls_to`": (
        "agent/telephony/outbound/test_dial_rights.py::"
        "test_a_key_with_the_right_to_it_calls_what_is_listed"
    ),
    "outbound calls that ring at once for one key, `telephony.ringing_per_key`": (
        "agent/telephony/outbound/test_dial_rights.py::test_so_many_calls_of_a_key_ring_at_once"
    ),
    "time that an outbound call rings, `telephony.ring_s`": (
        "agent/telephony/outbound/test_endpoint.py::test_a_call_is_placed_and_its_stream_is_known"
    ),
    "length of a telephone call, `telephony.limit_s`": (
        "agent/telephony/test_transport.py::test_a_call_ends_at_its_limit"
    ),
    "a carrier that sends nothing, `telephony.silent_s`": (
        "agent/telephony/test_transport.py::test_however_a_call_ends_nothing_is_left"
    ),
    "an SDP offer": (
        "agent/webrtc/test_live.py::test_what_can_t_be_served_is_refused_and_holds_nothing"
    ),
    "a request to open a call": (
        "agent/webrtc/test_live.py::test_what_can_t_be_served_is_refused_and_holds_nothing"
    ),
    "requests to open a call that are read at once": (
        "agent/webrtc/test_live.py::test_bodies_that_are_read_at_once_are_bounded"
    ),
    "datagrams that wait": (
        "agent/webrtc/test_peer.py::test_datagrams_that_nobody_reads_are_bounded"
    ),
    "candidates of an offer": "agent/webrtc/test_offer.py::test_a_flood_of_candidates_is_cut",
    "addresses of a client that are checked": (
        "agent/webrtc/test_peer.py::test_addresses_that_a_client_checks_from_are_bounded"
    ),
    "fragments of messages that wait for the rest": (
        "agent/webrtc/test_peer.py::test_fragments_that_wait_are_bounded"
    ),
    "a datagram, direct or relayed": (
        "agent/webrtc/test_peer.py::test_relayed_datagrams_have_the_bounds_of_direct_ones"
    ),
    "datagrams a second of a client's address in use, and of its others; STUN from other hosts": (
        "agent/webrtc/test_peer.py::test_datagrams_a_second_are_bounded"
    ),
    "records of DTLS in these datagrams": (
        "agent/webrtc/test_peer.py::test_records_of_a_datagram_count_as_datagrams"
    ),
    "RTCP datagrams a second": "agent/webrtc/test_peer.py::test_rtcp_a_second_is_bounded",
    "chunks a second on the data channel: DATA; others, and of these at once": (
        "agent/webrtc/test_sctp_guard.py::test_answers_of_many_packets_are_bounded"
    ),
    "packets of the data channel behind one that is missing": (
        "agent/webrtc/test_sctp_guard.py::test_a_gap_that_is_never_closed_ends_the_call"
    ),
    "data channels of a call": (
        "agent/webrtc/test_sctp_guard.py::test_channels_are_bounded_in_number_and_length"
    ),
    "messages on data channels other than `oai-events`": (
        "agent/webrtc/test_sctp_guard.py::test_messages_that_nothing_takes_are_bounded"
    ),
    "time until a WebRTC client is connected, `webrtc.connect_s`": (
        "agent/webrtc/test_live.py::test_a_client_that_does_not_connect_gives_its_line_back"
    ),
    "sources of RTP": (
        "agent/webrtc/test_live.py::test_audio_and_datagrams_of_others_are_dropped_and_leave_no_trace"
    ),
    "a message on the data channel": (
        "agent/webrtc/test_live.py::test_the_form_configures_the_session_and_events_act_on_it"
    ),
    "messages of the data channel that are not processed": (
        "agent/webrtc/test_live.py::test_a_client_that_floods_the_channel_is_disconnected"
    ),
    "length of a decoded recording, `asr.max_file_s`": (
        "asr/test_files.py::test_a_small_file_that_decodes_to_hours_is_refused_unread"
    ),
}
"""Limit -> test that shows what the client sees beyond it."""


def test_the_page_has_the_defaults_of_the_code() -> None:
    text = limits_page.page()
    for limit in limits_page.limits().values():
        assert limit.default
        assert limit.effect
        assert f"| {limit.name} | {limit.default} | {limit.effect} |" in text
    assert f"| a message | {frames.MAX_FRAME_BYTES >> 20} MiB | close 1009 |" in text


def test_each_limit_is_shown_by_a_test() -> None:
    assert set(SHOWN_BY) == set(limits_page.limits())


@pytest.mark.parametrize("limit", SHOWN_BY)
def test_every_row_has_a_test(limit: str) -> None:
    file, _, name = SHOWN_BY[limit].partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    tests = [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert name in tests


def message(*parts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": part} for part in parts]
    return {"type": "message", "role": "user", "content": content, **more}


def create(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "conversation.item.create", "item": item}


def update(**session: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "realtime", **session}}


def respond(**response: Any) -> dict[str, Any]:
    return {"type": "response.create", "response": response}


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"type": "function", "name": name, "description": description}


def nested(levels: int) -> dict[str, Any]:
    """An event of this depth: itself, `session`, `tracing`, `metadata`, its lists and what is in
    the last."""
    inner: Any = 0
    for _ in range(levels - 5):
        inner = [inner]
    return update(tracing={"metadata": {"x": inner}})


def of_marks(count: int) -> dict[str, Any]:
    empty = create(message(""))
    marks = sum(json.dumps(empty).count(mark) for mark in ",[{")
    return create(message("," * (count - marks)))


def of_digits(count: int) -> dict[str, Any]:
    """An event with a number of so many characters."""
    return update(tracing={"metadata": {"x": f"0.{'1' * (count - 2)}"}})


TOOLS_FRAME: Final = len(json.dumps([tool("f")]))

EDGES: Final[dict[str, tuple[Callable[[int], dict[str, Any]], int]]] = {
    "levels": (nested, frames.MAX_DEPTH),
    "marks": (of_marks, frames.MAX_MARKS),
    "characters of a number": (of_digits, frames.MAX_NUMBER_CHARS),
    "text": (lambda n: create(message("x" * n)), fields.MAX_TEXT_CHARS),
    "parts": (lambda n: create(message(*["x"] * n)), items.MAX_PARTS),
    "item id": (lambda n: create(message("x", id="i" * n)), fields.MAX_ID_CHARS),
    "event id": (
        lambda n: {"type": "response.cancel", "event_id": "e" * n},
        parse.MAX_EVENT_ID_CHARS,
    ),
    "instructions": (lambda n: update(instructions="x" * n), updates.MAX_INSTRUCTIONS_CHARS),
    "instructions of a response": (
        lambda n: respond(instructions="x" * n),
        updates.MAX_INSTRUCTIONS_CHARS,
    ),
    "tools": (lambda n: update(tools=[tool(f"f{i}") for i in range(n)]), updates.MAX_TOOLS),
    "tools as JSON": (
        lambda n: update(
            tools=[
                tool("f", "x" * ((n - 2 * TOOLS_FRAME + 2) // 2)),
                tool("g", "x" * ((n - 2 * TOOLS_FRAME + 3) // 2)),
            ]
        ),
        updates.MAX_TOOLS_BYTES - 2,
    ),
    "output tokens": (lambda n: update(max_output_tokens=n), updates.MAX_OUTPUT_TOKENS),
    "input": (lambda n: respond(input=[message("x")] * n), response_create.MAX_INPUT_ITEMS),
    "metadata": (
        lambda n: respond(metadata={str(i): "" for i in range(n)}),
        response_create.MAX_METADATA_KEYS,
    ),
}


def frame(event: dict[str, Any]) -> str:
    """The event as JSON. `of_digits` writes a number as a text, for a float has 17 digits."""
    return re.sub(r'"(0\.1+)"', r"\1", json.dumps(event))


@pytest.mark.parametrize("what", EDGES)
def test_the_limit_is_taken_and_one_more_is_not(what: str) -> None:
    event, most = EDGES[what]
    (taken,) = make().receive(frame(event(most)))
    assert not isinstance(taken, Problem), taken
    more = most + (3 if what == "tools as JSON" else 1)
    (refused,) = make().receive(frame(event(more)))
    assert isinstance(refused, Problem)
    assert refused.code in ("invalid_value", "invalid_event")
    assert re.search(r"\d", refused.message)  # it says how much is taken
