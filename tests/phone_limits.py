"""Rows of the table of limits that are about telephones; see `test_limits_table.py`."""

from typing import Final

from agent.calls import line_reservations
from agent.config.telephony import TelephonySettings
from agent.http.hardening import websocket_protocol
from agent.telephony import endpoint, pending_streams, webhooks
from agent.telephony.carriers.webhooks.webhook import MAX_ESCAPES, TOLERANCE_S

from .limit_words import number, seconds

TELEPHONY: Final = TelephonySettings()

PHONE_ROWS: Final[dict[str, tuple[str, str]]] = {
    "a message of a telephone's stream": (
        f"{websocket_protocol.MAX_PHONE_FRAME_BYTES // 1024} KiB",
        "test_hardening_websocket_protocol.py::test_a_telephones_messages_are_short",
    ),
    "messages of it before the one that says what call it is; time for that": (
        f"{endpoint.MAX_OPENING}; {seconds(endpoint.OPEN_S)}",
        "test_telephony_live.py::test_what_is_no_stream_is_closed_with_the_reason",
    ),
    "such streams without a key that have not said it yet": (
        number(pending_streams.MAX_STREAMS),
        "test_telephony_lines.py::test_many_streams_that_say_nothing_keep_no_call_out",
    ),
    "telephone calls that a webhook announced; time for their streams": (
        f"as many as there are free lines; {seconds(line_reservations.TOKEN_S)}",
        "test_telephony_lines.py::test_who_is_announced_has_a_line",
    ),
    "a carrier's webhook; time for all of it": (
        f"{webhooks.MAX_BODY_BYTES // 1024} KiB; {seconds(webhooks.BODY_TIMEOUT_S)}",
        "test_telephony_webhooks.py::test_bad_bodies",
    ),
    "characters of a carrier's form that are written as %XX": (
        number(MAX_ESCAPES),
        "test_telephony_carriers_webhook_input.py::test_what_is_long_to_decode_is_not_decoded_for_strangers",
    ),
    "by how much a carrier's clock may differ": (
        seconds(TOLERANCE_S),
        "test_telephony_carriers_served.py::test_a_webhook_of_the_past_is_refused",
    ),
    "signed questions of carriers that are remembered": (
        number(webhooks.MAX_ANSWERED),
        "test_telephony_lines.py::test_old_questions_are_forgotten",
    ),
    "numbers that a key may have called, `telephony.calls_to`": (
        ", ".join(TELEPHONY.calls_to) or "none",
        "test_telephony_dial_rights.py::test_a_key_with_the_right_to_it_calls_what_is_listed",
    ),
    "calls to others that ring at once for one key, `telephony.ringing_per_key`": (
        number(TELEPHONY.ringing_per_key),
        "test_telephony_dial_rights.py::test_so_many_calls_of_a_key_ring_at_once",
    ),
    "time that a call to others rings, `telephony.ring_s`": (
        seconds(TELEPHONY.ring_s),
        "test_telephony_outbound_endpoint.py::test_a_call_is_placed_and_its_stream_is_known",
    ),
    "length of a call by telephone, `telephony.limit_s`": (
        seconds(TELEPHONY.limit_s),
        "test_telephony_transport.py::test_a_call_ends_at_its_limit",
    ),
    "a carrier that sends nothing, `telephony.silent_s`": (
        seconds(TELEPHONY.silent_s),
        "test_telephony_transport.py::test_however_a_call_ends_nothing_is_left",
    ),
}
