"""The table of limits in the README: every row is what the code says, and has a test."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import asr
from agent.calls.recording import MAX_WAITING_S
from agent.codec import json_frame as frames
from agent.config.access import AccessSettings
from agent.config.schema import ServiceSettings
from agent.http import json_body, multipart
from agent.http.auth import throttle
from agent.http.auth.client_secrets import MAX_OF_A_KEY, MAX_SECRETS
from agent.http.hardening import header_limits, http_protocol, message_queue, websocket_protocol
from agent.http.openai import concurrency_limit, speech_request
from agent.observability.live_events import MAX_LISTENERS
from agent.realtime import receive_limiter, send_queue, socket
from agent.realtime.protocol import fields, items, parse, protocol, response_create
from agent.realtime.protocol import session_update as updates
from agent.server import event_loop
from agent.session.api import conversation
from agent.session.api.server_events import Problem
from agent.stages import openai_tools

from .limit_words import number, seconds
from .phone_limits import PHONE_ROWS
from .wire_frames import make

ROOT: Final = Path(__file__).resolve().parents[1]
ACCESS: Final = AccessSettings()
SERVICE: Final = ServiceSettings()


# Of each row: its default, and the test that shows what the client sees.
ROWS: Final[dict[str, tuple[str, str]]] = {
    "connections at once": (
        f"`agent.max_sessions` + {http_protocol.SPARE_CONNECTIONS}",
        "test_hardening_http_protocol.py::test_at_the_limit_who_has_asked_nothing_for_longest_makes_room",
    ),
    "connections from an address, `access.connections_per_address`": (
        number(ACCESS.connections_per_address),
        "test_hardening_http_protocol.py::test_an_address_makes_room_for_itself",
    ),
    "new connections from an address, `access.connections_per_s`": (
        f"{ACCESS.connections_per_s} a second",
        "test_hardening_http_protocol.py::test_who_connects_too_fast_is_closed_before_anything_is_read",
    ),
    "requests from an address, `access.requests_per_s`": (
        f"{ACCESS.requests_per_s} a second",
        "test_hardening_http_protocol.py::test_requests_in_a_row_are_answered_no_faster_than_allowed",
    ),
    "proxies that may name other addresses, `access.trusted_proxies`": (
        "none",
        "test_limits_process.py::test_an_address_has_its_calls_and_an_end",
    ),
    "time for a TLS handshake": (
        seconds(event_loop.TLS_TIMEOUT_S),
        "test_auth_tls.py::test_who_says_nothing_is_hung_up_on",
    ),
    "time for a request's head": (
        seconds(http_protocol.REQUEST_TIMEOUT_S),
        "test_hardening_http_protocol.py::test_who_asks_nothing_is_got_rid_of",
    ),
    "a request's head": (
        f"{header_limits.MAX_HEAD_BYTES // 1024} KiB",
        "test_hardening_header_limits.py::test_too_much_is_refused",
    ),
    "its headers": (
        number(header_limits.MAX_HEADERS),
        "test_hardening_header_limits.py::test_too_much_is_refused",
    ),
    "path and query": (
        f"{header_limits.MAX_TARGET_BYTES // 1024} KiB",
        "test_hardening_header_limits.py::test_too_much_is_refused",
    ),
    "lengths and hosts of a request": (
        "one",
        "test_hardening_header_limits.py::test_nothing_is_smuggled",
    ),
    "a JSON body": (
        number(json_body.MAX_BODY_BYTES),
        "test_agent_chat_bad_input.py::test_a_body_without_end",
    ),
    "its brackets and commas": (
        number(frames.MAX_MARKS),
        "test_agent_chat_bad_input.py::test_everything_refused_and_nobody_disturbed",
    ),
    "all tools of a chat request": (
        f"{number(openai_tools.MAX_TOOLS_CHARS)} characters",
        "test_stages_openai_tools.py::test_what_is_refused_names_the_field",
    ),
    "time for a body": (
        seconds(json_body.BODY_TIMEOUT_S),
        "test_agent_chat_bad_input.py::test_a_body_without_end",
    ),
    "bodies held at once": (
        number(json_body.MAX_HELD_BYTES),
        "test_agent_chat_bad_input.py::test_bodies_that_fit_only_alone",
    ),
    "an upload": (
        number(multipart.MAX_FORM_BYTES),
        "test_stages_offline.py::test_an_endless_upload_is_read_to_the_limit_and_no_further",
    ),
    "charsets of an upload's texts": (
        "UTF-8 and ISO 8859-1",
        "test_http_multipart.py::test_other_charsets_are_named_and_not_tried",
    ),
    "a message in the log that strangers cause": (
        "the 1st, 2nd, 4th, 8th, ...",
        "test_observability_server_log.py::test_requests_that_are_none_do_not_fill_the_log",
    ),
    "time for an upload": (
        seconds(multipart.UPLOAD_TIMEOUT_S),
        "test_stages_offline.py::test_one_that_never_ends_is_given_up",
    ),
    "characters to read aloud": (
        number(speech_request.MAX_INPUT_CHARS),
        "test_openai_speech.py::test_what_is_refused_says_why",
    ),
    "uploads at once; texts to read aloud": (
        f"{concurrency_limit.MAX_AT_ONCE}; {concurrency_limit.MAX_AT_ONCE}",
        "test_stages_offline.py::test_one_request_too_many_is_told_to_come_again",
    ),
    "time to read on in a response": (
        seconds(http_protocol.STALL_TIMEOUT_S),
        "test_hardening_http_protocol.py::test_who_does_not_read_on_is_cut_off",
    ),
    "listeners at `/v1/latency/events`": (
        number(MAX_LISTENERS),
        "test_observability_live_events.py::test_too_many_listeners_are_refused",
    ),
    "a recording of a call, `agent.record_mb`": (
        f"{SERVICE.record_mb} MB",
        "test_calls_recorder.py::test_a_recording_ends_at_its_largest_size",
    ),
    "sound that waits for the disk": (
        seconds(MAX_WAITING_S),
        "test_calls_recorder.py::test_a_disk_that_is_too_slow_holds_nobody_up",
    ),
    "wrong keys from an address": (
        f"{throttle.FREE_TRIES}, one more every {throttle.FORGET_S:g} s",
        "test_auth_middleware.py::test_only_so_many_wait",
    ),
    "client secrets; of one key": (
        f"{number(MAX_SECRETS)}; {number(MAX_OF_A_KEY)}",
        "test_auth_client_secrets.py::test_there_is_an_end_to_secrets",
    ),
    "calls at once, `agent.max_sessions`": (
        number(SERVICE.max_sessions),
        "test_server_http.py::test_many_at_once_get_no_more_lines_than_there_are",
    ),
    "calls of a key, `access.calls_per_key`": (
        "all",
        "test_server_keys.py::test_a_key_has_only_its_calls",
    ),
    "calls from an address, `access.calls_per_address`": (
        "all",
        "test_limits_process.py::test_an_address_has_its_calls_and_an_end",
    ),
    "length of a call, `agent.session_limit_s`": (
        seconds(SERVICE.session_limit_s),
        "test_limits_process.py::test_an_address_has_its_calls_and_an_end",
    ),
    "a client that sends nothing, `access.idle_s`": (
        seconds(ACCESS.idle_s),
        "test_attacks_network.py::test_who_is_idle_is_told_so",
    ),
    "a client that does not answer pings": (
        "20 s + 20 s",
        "test_hardening_http_protocol.py::test_who_is_silent_is_gone",
    ),
    "a message": (
        number(frames.MAX_FRAME_BYTES),
        "test_server_input.py::test_a_frame_beyond_the_limit_ends_the_call_and_no_other",
    ),
    "compression": (
        "none",
        "test_attacks_network.py::test_nothing_is_ever_decompressed",
    ),
    "messages": (
        f"{receive_limiter.MESSAGES_PER_S} a second after the first "
        f"{number(receive_limiter.MESSAGES_AT_ONCE)}",
        "test_realtime_receive_limiter.py::test_what_makes_work_counts_as_many_messages",
    ),
    "frames of messages, pings among them": (
        f"{number(websocket_protocol.FRAMES_PER_S)} a second after the first "
        f"{number(websocket_protocol.FRAMES_AT_ONCE)}",
        "test_hardening_websocket_protocol.py::test_frames_are_parsed_no_faster_than_allowed",
    ),
    "messages that the call has not dealt with": (
        f"{message_queue.MAX_WAITING_BYTES >> 20} MiB",
        "test_hardening_websocket_protocol.py::test_nothing_is_parsed_beyond_what_may_wait",
    ),
    "text that is not UTF-8, frames that break RFC 6455": (
        "none",
        "test_attacks_network.py::test_a_broken_frame_ends_its_own_call",
    ),
    "audio ahead of real time, `access.burst_s`": (
        seconds(ACCESS.burst_s),
        "test_attacks_network.py::test_who_sends_without_end_is_read_in_real_time",
    ),
    "audio without a commit": (
        seconds(asr.ListenerConfig().max_buffer_s),
        "test_asr_stream_buffer.py::test_a_full_buffer_says_what_to_do_and_goes_on_after_it",
    ),
    "what waits for a client, and how long": (
        f"{number(send_queue.MAX_BYTES)}; {socket.SEND_TIMEOUT_S:g} s",
        "test_realtime_send_queue.py::test_who_does_not_read_for_long_is_cut_off",
    ),
    "JSON: levels": (
        number(frames.MAX_DEPTH),
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "JSON: brackets and commas": (
        number(frames.MAX_MARKS),
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "items in a conversation": (
        number(conversation.MAX_ITEMS),
        "test_session_api_conversation.py::test_full_conversation_takes_no_more_until_something_is_deleted",
    ),
    "characters of a text": (
        number(fields.MAX_TEXT_CHARS),
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "parts of a message": (
        number(items.MAX_PARTS),
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "characters of an id; of an `event_id`": (
        f"{fields.MAX_ID_CHARS}; {parse.MAX_EVENT_ID_CHARS}",
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "characters of instructions": (
        number(updates.MAX_INSTRUCTIONS_CHARS),
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "tools; all of them as JSON": (
        f"{updates.MAX_TOOLS}; {updates.MAX_TOOLS_BYTES // 1024} KiB",
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "`max_output_tokens`": (
        number(updates.MAX_OUTPUT_TOKENS),
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "items in `input`; keys in `metadata`": (
        f"{response_create.MAX_INPUT_ITEMS}; {response_create.MAX_METADATA_KEYS}",
        "test_limits_table.py::test_the_limit_is_taken_and_one_more_is_not",
    ),
    "`session.update`s that wait for their answer": (
        number(protocol.MAX_PENDING_UPDATES),
        "test_realtime_protocol_session_update.py::test_too_many_unanswered_updates_are_refused",
    ),
    **PHONE_ROWS,
}


def table() -> dict[str, list[str]]:
    """Rows under the README's heading: of each limit, its default and what the client sees."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.split(r"\n##+ ", text.split("\n### Limits\n")[1])[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[2:]}


def test_the_table_is_what_the_code_says() -> None:
    written = table()
    assert {limit: cells[0] for limit, cells in written.items()} == {
        limit: default for limit, (default, _) in ROWS.items()
    }
    assert all(len(cells) == 2 and cells[1] for cells in written.values())


@pytest.mark.parametrize("limit", ROWS)
def test_every_row_has_a_test(limit: str) -> None:
    file, _, name = ROWS[limit][1].partition("::")
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
    """An event of this depth: itself, `session`, `prompt`, its lists and what is in the last."""
    inner: Any = 0
    for _ in range(levels - 4):
        inner = [inner]
    return update(prompt={"x": inner})


def of_marks(count: int) -> dict[str, Any]:
    empty = create(message(""))
    marks = sum(json.dumps(empty).count(mark) for mark in ",[{")
    return create(message("," * (count - marks)))


TOOLS_FRAME: Final = len(json.dumps([tool("f")]))

EDGES: Final[dict[str, tuple[Callable[[int], dict[str, Any]], int]]] = {
    "levels": (nested, frames.MAX_DEPTH),
    "marks": (of_marks, frames.MAX_MARKS),
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


@pytest.mark.parametrize("what", EDGES)
def test_the_limit_is_taken_and_one_more_is_not(what: str) -> None:
    event, most = EDGES[what]
    (taken,) = make().receive(json.dumps(event(most)))
    assert not isinstance(taken, Problem), taken
    more = most + (3 if what == "tools as JSON" else 1)
    (refused,) = make().receive(json.dumps(event(more)))
    assert isinstance(refused, Problem)
    assert refused.code in ("invalid_value", "invalid_event")
    assert re.search(r"\d", refused.message)  # it says how much is taken
