"""Proof that a media stream belongs to an expected call."""

import base64
from dataclasses import replace

import pytest

from agent.calls.stream_tokens import TOKEN_S, CallTokens, ExpectedCall
from agent.http.auth.principal import ANYONE, UNPROVEN, KeyLimits, Principal
from agent.http.auth.telephony_credentials import TOKEN, basic_password
from agent.telephony.carriers import plivo, telnyx, twilio
from agent.telephony.carriers.carrier import Carrier
from agent.telephony.carriers.media_stream import MULAW, StreamStarted
from agent.telephony.signatures import carrier_principal
from agent.telephony.stream_auth import completed, may_transfer, proven
from latency_budget.account.clock import ManualClock

SALES = Principal("sales", "key", key_id="key:1")
CALL = ExpectedCall(SALES, "pirate", "+15550100", "+15550199", carrier="Twilio")
NAMED = replace(CALL, call_id="CA1", is_named_by_stream=True)


def stream(call_id: str = "CA1", **parameters: str) -> StreamStarted:
    return StreamStarted("MZ1", call_id, MULAW, parameters=parameters)


def shown(
    tokens: CallTokens, token: str, call_id: str = "CA1", carrier: Carrier = twilio.CARRIER
) -> ExpectedCall | None:
    """Whose call a stream is that has nothing but a token."""
    return proven(UNPROVEN, carrier, stream(call_id, token=token), tokens)


def test_a_token_is_good_for_one_stream_and_half_a_minute() -> None:
    clock = ManualClock()
    tokens = CallTokens(clock)
    token = tokens.issue(CALL)
    assert tokens.holds(token)
    assert shown(tokens, token) == CALL
    assert shown(tokens, token) is None
    assert not tokens.holds(token)
    late = tokens.issue(CALL)
    clock.advance_ms(1000 * TOKEN_S + 1)
    assert shown(tokens, late) is None
    rings = tokens.issue(CALL, life_s=10 * TOKEN_S)
    clock.advance_ms(9000 * TOKEN_S)
    assert proven(UNPROVEN, twilio.CARRIER, stream(), tokens, presented=rings) == CALL, (
        "as a password"
    )


def test_a_token_of_another_call_opens_nothing_and_stays_good_for_its_own() -> None:
    tokens = CallTokens(ManualClock())
    token = tokens.issue(NAMED)
    assert shown(tokens, token, "CA2") is None
    assert shown(tokens, token, "") is None
    assert shown(tokens, token, carrier=plivo.CARRIER) is None
    assert tokens.holds(token)
    assert shown(tokens, token) == NAMED
    loose = tokens.issue(replace(CALL, carrier="Telnyx", call_id="CA1"))
    assert shown(tokens, loose, "v3:other", telnyx.CARRIER) is not None, "its stream has no such"


def test_a_call_of_ours_gets_its_id_later() -> None:
    tokens = CallTokens(ManualClock())
    token = tokens.issue(CALL)
    tokens.name(token, "CA1")
    assert shown(tokens, token, "CA2") is None
    assert shown(tokens, token) == NAMED
    tokens.name(token, "CA1")  # Twilio was slower with its answer than the call
    assert len(tokens) == 0


def test_a_call_of_ours_may_be_over_before_it_has_its_id() -> None:
    tokens = CallTokens(ManualClock())
    token, other = tokens.issue(CALL), tokens.issue(CALL)
    tokens.ended(Principal("Twilio", "carrier", key_id="carrier:Twilio"), "Twilio", "CA1")
    tokens.ended(SALES, "Twilio", "CA2")
    tokens.name(token, "CA1")
    tokens.name(other, "CA2")
    assert (tokens.holds(token), tokens.holds(other)) == (False, True), "a key is no carrier"


def test_who_asks_again_has_a_token_already() -> None:
    tokens = CallTokens(ManualClock())
    token = tokens.issue(NAMED)
    assert tokens.issued_for(SALES, "Twilio", "CA1") == token
    assert tokens.issued_for(SALES, "Twilio", "CA2") is None
    assert tokens.issued_for(SALES, "Plivo", "CA1") is None
    other = Principal("other", "key", key_id="key:2")
    assert tokens.issued_for(other, "Twilio", "CA1") is None, "it is not his"


def test_the_end_of_a_call_ends_its_token() -> None:
    tokens = CallTokens(ManualClock())
    token = tokens.issue(NAMED)
    tokens.ended(Principal("other", "key", key_id="key:2"), "Twilio", "CA1")
    tokens.ended(SALES, "Twilio", "CA2")
    assert tokens.holds(token)
    tokens.ended(SALES, "Twilio", "CA1")
    assert not tokens.holds(token)
    token = tokens.issue(NAMED)
    tokens.ended(Principal("Twilio", "carrier", key_id="carrier:Twilio"), "Twilio", "CA1")
    assert not tokens.holds(token)


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
    guessed = stream(token="ct_guessed")
    assert proven(SALES, twilio.CARRIER, stream(), tokens) == ExpectedCall(SALES)
    assert proven(ANYONE, twilio.CARRIER, guessed, tokens) == ExpectedCall(ANYONE)
    assert proven(UNPROVEN, twilio.CARRIER, guessed, tokens) is None


@pytest.mark.parametrize("has_public_url", [True, False])
def test_calls_are_transferred_for_the_carrier_and_for_those_who_may_dial(
    has_public_url: bool,
) -> None:
    """A key may name any call. A server without keys tells nobody from another."""
    dialer = replace(SALES, limits=KeyLimits(dials=True))
    local, secret = Principal("a command", "local"), Principal("a page", "ephemeral")
    may = {
        each.kind + (" that dials" if each.limits.dials else ""): may_transfer(
            each, has_public_url=has_public_url
        )
        for each in (carrier_principal("Twilio"), dialer, local, SALES, secret, ANYONE)
    }
    assert may == {
        "carrier": True,
        "key that dials": True,
        "local": True,
        "key": False,
        "ephemeral": False,
        "open": not has_public_url,
    }


def test_tokens_that_nobody_uses_are_forgotten() -> None:
    clock = ManualClock()
    tokens = CallTokens(clock)
    tokens.issue(CALL)
    tokens.issue(replace(CALL, principal=ANYONE), life_s=2 * TOKEN_S)
    dropped = tokens.issue(CALL)
    assert (len(tokens), tokens.num_of("key:1"), tokens.num_of("")) == (3, 2, 1)
    tokens.drop(dropped)
    clock.advance_ms(1000 * TOKEN_S + 1)
    assert (len(tokens), tokens.num_of("key:1"), tokens.num_of("")) == (1, 0, 1)


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
