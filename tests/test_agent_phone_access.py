"""What proves that a stream is of a call that was expected."""

import base64
from dataclasses import replace

import pytest

from agent.phone_access import (
    MAX_TOKENS,
    TOKEN,
    TOKEN_S,
    CallTokens,
    ExpectedCall,
    basic_password,
    completed,
    proven,
)
from agent.principal import ANYONE, UNPROVEN, Principal
from agent.wire.telephony.line import MULAW, StreamStarted
from latency_budget.clock import ManualClock

SALES = Principal("sales", "key", key_id="key:1")
CALL = ExpectedCall(SALES, "pirate", "+15550100", "+15550199")


def stream(**parameters: str) -> StreamStarted:
    return StreamStarted("MZ1", "CA1", MULAW, parameters=parameters)


def test_a_token_is_good_for_one_stream_and_a_minute() -> None:
    clock = ManualClock()
    tokens = CallTokens(clock)
    token = tokens.issue(CALL)
    assert tokens.holds(token)
    assert proven(UNPROVEN, stream(token=token), tokens) == CALL
    assert proven(UNPROVEN, stream(token=token), tokens) is None
    assert not tokens.holds(token)
    late = tokens.issue(CALL)
    clock.advance_ms(1000 * TOKEN_S + 1)
    assert proven(UNPROVEN, stream(token=late), tokens) is None
    rings = tokens.issue(CALL, life_s=10 * TOKEN_S)
    clock.advance_ms(9000 * TOKEN_S)
    assert proven(UNPROVEN, stream(), tokens, presented=rings) == CALL, "as a password"


def test_what_the_webhook_told_counts_before_what_the_stream_says() -> None:
    told = ExpectedCall(SALES, None, "+15550100", "", {"direction": "outbound"})
    said = replace(stream(direction="inbound", a="b"), caller="+1", called="+2")
    whole = completed(said, told)
    assert (whole.caller, whole.called) == ("+15550100", "+2")
    assert whole.parameters == {"direction": "outbound", "a": "b"}


def test_a_token_can_be_handed_on_by_every_carrier() -> None:
    """Plivo's extra headers hold letters and digits."""
    token = CallTokens(ManualClock()).issue(CALL)
    assert TOKEN.fullmatch(token)
    assert token.isascii()
    assert token.isalnum()


def test_who_came_in_by_a_key_needs_no_token() -> None:
    tokens = CallTokens(ManualClock())
    assert proven(SALES, stream(), tokens) == ExpectedCall(SALES)
    assert proven(ANYONE, stream(token="ct_guessed"), tokens) == ExpectedCall(ANYONE)
    assert proven(UNPROVEN, stream(token="ct_guessed"), tokens) is None


def test_tokens_that_nobody_uses_are_forgotten() -> None:
    clock = ManualClock()
    tokens = CallTokens(clock)
    first = tokens.issue(CALL)
    for _ in range(MAX_TOKENS):
        tokens.issue(CALL)
    assert len(tokens) == MAX_TOKENS
    assert tokens.redeem(first) is None
    clock.advance_ms(1000 * TOKEN_S + 1)
    tokens.issue(CALL)
    assert len(tokens) == 1


@pytest.mark.parametrize(
    ("header", "password"),
    [
        ("Basic " + base64.b64encode(b"halfsec:hs_1").decode(), "hs_1"),
        ("basic " + base64.b64encode(b":hs_1:x").decode(), "hs_1:x"),
        ("Basic " + base64.b64encode(b"nothing").decode(), ""),
        ("Basic ???", ""),
        ("Bearer hs_1", None),
    ],
)
def test_the_password_of_basic(header: str, password: str | None) -> None:
    assert basic_password(header) == password
