"""Who signed a webhook, what it asks, and what it is answered: each carrier as its documentation,
or its own library, has it. The pages are named in the modules of
`agent/telephony/carriers`."""

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from twilio.request_validator import RequestValidator
from twilio.twiml.voice_response import Connect, Stream, VoiceResponse

from agent.telephony.carriers import plivo, twilio
from agent.telephony.carriers.table import CARRIERS
from agent.telephony.carriers.webhook import (
    FORM,
    TOLERANCE_S,
    CarrierCall,
    SignatureError,
    WebhookRequest,
)

WEBHOOKS = {
    key: carrier.webhook for key, carrier in CARRIERS.items() if carrier.webhook is not None
}
NOW = 1_700_000_000
AT = "https://voice.example.com/telephony/twilio/voice"
STREAM = "wss://voice.example.com/telephony/twilio/stream"
SECRET = "12345"
CALL = CarrierCall("CA1", "+15550100", "+15550199")
OUTBOUND = CarrierCall("CA1", "+15550100", "+15550199", is_outbound=True)
TELNYX_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TELNYX_PUBLIC = base64.b64encode(TELNYX_KEY.public_key().public_bytes_raw()).decode()
VONAGE_SECRET = "a signature secret of more than sixty-four bytes, so that HS512 would do"


def post(form: dict[str, str], *, url: str = AT, **headers: str) -> WebhookRequest:
    body = urlencode(form).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return WebhookRequest("POST", url, {"content-type": FORM, **named}, body, NOW)


def sent(value: object, method: str = "POST", url: str = AT, **headers: str) -> WebhookRequest:
    body = json.dumps(value, separators=(",", ":")).encode() if method == "POST" else b""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return WebhookRequest(method, url, named, body, NOW)


# --- Twilio ---


def test_the_example_of_twilios_documentation() -> None:
    fields = {
        "CallSid": "CA1234567890ABCDE",
        "Caller": "+14158675309",
        "Digits": "1234",
        "From": "+14158675309",
        "To": "+18005551212",
    }
    url = "https://mycompany.com/myapp.php?foo=1&bar=2"
    assert twilio.signature_of(url, fields.items(), SECRET) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="
    WEBHOOKS["twilio"].check(
        post(fields, url=url, x_twilio_signature="RSOYDt4T1cUTdK1PDd93/VVr8B8="), SECRET
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(fields=st.dictionaries(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), token=TEXTS)
def test_signatures_are_those_of_twilios_own_library(
    fields: dict[str, list[str]], token: str
) -> None:
    """Several values under one name, and the same twice, included."""

    class Form(dict[str, list[str]]):
        def getlist(self, name: str) -> list[str]:
            return self[name]

    pairs = [(name, value) for name, values in fields.items() for value in values]
    assert twilio.signature_of(AT, pairs, token) == RequestValidator(token).compute_signature(
        AT, Form(fields)
    )


@pytest.mark.parametrize(
    "url", [AT, f"{AT}?a=1", AT.replace(".com", ".com:443"), AT.replace(".com", ".com:8443")]
)
def test_the_port_may_stand_in_what_was_signed_or_not(url: str) -> None:
    """As Twilio's own validator has it."""
    judge = RequestValidator(SECRET)
    for signed in {AT, f"{AT}?a=1", *twilio.spellings(url)}:
        signature = judge.compute_signature(signed, {"a": "b"})
        request = post({"a": "b"}, url=url, x_twilio_signature=signature)
        if judge.validate(url, {"a": "b"}, signature):
            WEBHOOKS["twilio"].check(request, SECRET)
        else:
            with pytest.raises(SignatureError, match="another address"):
                WEBHOOKS["twilio"].check(request, SECRET)


def test_a_streams_upgrade_is_signed_with_its_own_address() -> None:
    judge = RequestValidator(SECRET)
    for url in (STREAM, f"{STREAM}/", STREAM.replace(".com", ".com:443")):
        headers = {twilio.SIGNATURE: judge.compute_signature(url, {})}
        twilio.check_signature(twilio.upgrade_spellings(STREAM), (), headers, SECRET)
    for url in (AT, STREAM.replace("wss", "https"), STREAM.replace("voice.", "evil."), ""):
        headers = {twilio.SIGNATURE: judge.compute_signature(url, {})}
        with pytest.raises(SignatureError):
            twilio.check_signature(twilio.upgrade_spellings(STREAM), (), headers, SECRET)


def test_twilio_may_sign_with_a_shared_key() -> None:
    form, settings = {"CallSid": "CA1"}, "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256"
    signature = RequestValidator(SECRET).compute_signature(AT, form, "HMAC_SHA256")
    headers = {"x_twilio_signature": signature}
    hook = WEBHOOKS["twilio"]
    hook.check(post(form, **headers, x_twilio_webhooks_signature_settings=settings), SECRET)
    unknown = settings.replace("256", "512")
    for wrong in (
        post(form, **headers),
        post(form, **headers, x_twilio_webhooks_signature_settings=unknown),
    ):
        with pytest.raises(SignatureError):
            hook.check(wrong, SECRET)


@pytest.mark.parametrize(
    "changes",
    [
        {"x_twilio_signature": ""},
        {"x_twilio_signature": "ü" * 28},
        {"x_twilio_signature": "A" * 100_000},
        {"secret": "54321"},
        {"form": {"CallSid": "CA1", "To": "+15550100"}},
        {"url": AT.replace("https", "http")},
    ],
)
def test_twilio_is_not_believed(changes: dict[str, Any]) -> None:
    form = {"CallSid": "CA1", "To": "+15550199"}
    signature = RequestValidator(SECRET).compute_signature(AT, form)
    secret = changes.pop("secret", SECRET)
    given = {"form": form, "url": AT, "x_twilio_signature": signature, **changes}
    with pytest.raises(SignatureError):
        WEBHOOKS["twilio"].check(post(**given), secret)


def test_twilio_is_answered_in_its_own_language() -> None:
    response, connect = VoiceResponse(), Connect()
    stream = Stream(url=STREAM)
    stream.parameter(name="token", value="ct12")
    connect.append(stream)
    response.append(connect)
    answer = WEBHOOKS["twilio"].connect(CALL, STREAM, "ct12")
    assert ElementTree.canonicalize(answer.text) == ElementTree.canonicalize(str(response))
    assert answer.media_type == "application/xml"
    assert "?" not in answer.text, "nothing of it is in a query"
    busy = WEBHOOKS["twilio"].reject(CALL, "Busy.", is_busy=True)
    assert busy.text == '<Response><Reject reason="busy" /></Response>'
    for call, is_busy in ((CALL, False), (OUTBOUND, True)):
        words = WEBHOOKS["twilio"].reject(call, "a < b & \x00c", is_busy=is_busy)
        assert words.text == "<Response><Say>a &lt; b &amp; c</Say><Hangup /></Response>"


# --- the others' signatures ---


@pytest.mark.parametrize(
    ("url", "form", "signature"),
    [  # as plivo-python 4.59 makes them
        (
            f"{AT}?CallUUID=c1&From=493012345&To=4930999&Direction=inbound",
            {},
            "ALTwvtKSA698jqNOpOGD4NW4sj87CYDfg6xDi7g2OJc=",
        ),
        (
            AT,
            {
                "CallUUID": "c1",
                "From": "493012345",
                "To": "4930999",
                "Direction": "inbound",
                "Event": "StartApp",
            },
            "srSTrF533465hbX/Hvm4CP8VRDjYirP+aqVd6AUEel4=",
        ),
        (
            f"{AT}?b=2&a=1",
            {"CallUUID": "c1", "To": "4930999"},
            "R+VnYNm+cTPtGA3I3VAi+mtugkx8eHaiKRV0f18QJjA=",
        ),
        (f"{AT}?b=2&a=1", {}, "/s8aexIe+pCwH7nl+vnNX5wgcyllApXIWhLHtA86OXg="),
    ],
)
def test_plivos_signatures(url: str, form: dict[str, str], signature: str) -> None:
    url = url.replace("twilio", "plivo")
    headers = {
        "x_plivo_signature_v3": f"b2xkZXI=,{signature}",
        "x_plivo_signature_v3_nonce": "05429567804466091622",
    }
    secret = "MAMZQ0MTVHZJGTYTA5Mz"
    method = "POST" if form else "GET"
    request = post(form, url=url, **headers) if form else sent({}, method, url, **headers)
    hook = WEBHOOKS["plivo"]
    hook.check(request, secret)
    others = post({**form, "x": "y"}, url=url, **headers)
    elsewhere = post(form, url=url.replace("voice.", "evil."), **headers)
    for wrong, token in ((request, "other"), (others, secret), (elsewhere, secret)):
        with pytest.raises(SignatureError):
            hook.check(wrong, token)
    with pytest.raises(SignatureError, match="there is no"):
        hook.check(post(form, url=url), secret)
    assert plivo.NONCE in request.headers


def telnyx(body: WebhookRequest, at: int = NOW, key: Ed25519PrivateKey = TELNYX_KEY) -> Any:
    signature = base64.b64encode(key.sign(f"{at}|".encode() + body.body)).decode()
    headers = {"telnyx-signature-ed25519": signature, "telnyx-timestamp": str(at)}
    return WebhookRequest(body.method, body.url, {**body.headers, **headers}, body.body, NOW)


def test_telnyx_is_told_the_format_of_both_directions() -> None:
    answer = WEBHOOKS["telnyx"].connect(CALL, STREAM, "ct1")
    (stream,) = ElementTree.fromstring(answer.text).iter("Stream")
    assert (stream.get("codec"), stream.get("bidirectionalCodec")) == ("PCMU", "PCMU")


def test_telnyx_signs_time_and_body() -> None:
    hook, asked = WEBHOOKS["telnyx"], post({"CallSid": "v3:x", "To": "+15550199"})
    hook.check(telnyx(asked), TELNYX_PUBLIC)
    hook.check(telnyx(asked, NOW - TOLERANCE_S), TELNYX_PUBLIC)
    signed = telnyx(asked)
    forged = WebhookRequest("POST", AT, signed.headers, signed.body + b"0", NOW)
    garbled = {**signed.headers, "telnyx-signature-ed25519": "???"}
    for wrong, why in [
        (telnyx(asked, NOW - TOLERANCE_S - 1), "clock"),
        (telnyx(asked, NOW + TOLERANCE_S + 1), "clock"),
        (telnyx(asked, key=Ed25519PrivateKey.generate()), "another body, time or key"),
        (forged, "another body, time or key"),
        (WebhookRequest("POST", AT, garbled, signed.body, NOW), "another body, time or key"),
        (asked, "there is no"),
    ]:
        with pytest.raises(SignatureError, match=why):
            hook.check(wrong, TELNYX_PUBLIC)
    with pytest.raises(SignatureError, match="telnyx_public_key"):
        hook.check(signed, "AAAA")


def jambonz(request: WebhookRequest, at: str = str(NOW), secret: str = SECRET) -> WebhookRequest:
    made = hmac.new(secret.encode(), f"{at}.".encode() + request.body, hashlib.sha256).hexdigest()
    header = f"t={at},v1={'0' * 64},v1={made}"
    return WebhookRequest("POST", AT, {"jambonz-signature": header}, request.body, NOW)


def test_jambonz_signs_time_and_body() -> None:
    hook, asked = WEBHOOKS["jambonz"], sent({"call_sid": "5f3e", "to": "+15550199"})
    hook.check(jambonz(asked), SECRET)
    for wrong, why in [
        (jambonz(asked, str(NOW - TOLERANCE_S - 1)), "clock"),
        (jambonz(asked, "-5"), "no number"),
        (jambonz(asked, secret="other"), "another body, time or secret"),
        (WebhookRequest("POST", AT, jambonz(asked).headers, b"{}", NOW), "another body"),
        (WebhookRequest("POST", AT, {"jambonz-signature": "v1=é,t"}, b"{}", NOW), "there is no"),
        (asked, "there is no"),
    ]:
        with pytest.raises(SignatureError, match=why):
            hook.check(wrong, SECRET)


def vonage(
    request: WebhookRequest, algorithm: str = "HS256", secret: str = VONAGE_SECRET, **claims: Any
) -> WebhookRequest:
    token = jwt.encode({"iss": "Vonage", "iat": NOW, **claims}, secret, algorithm)
    headers = {"authorization": f"Bearer {token}"}
    return WebhookRequest(request.method, request.url, headers, request.body, NOW)


def sha256(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


def test_vonage_signs_with_a_web_token() -> None:
    hook, asked = WEBHOOKS["vonage"], sent({"uuid": "aaa", "to": "15550199"})
    queried = sent({}, "GET", f"{AT}?to=15550199&uuid=aaa")
    hook.check(vonage(asked, payload_hash=sha256(asked.body)), VONAGE_SECRET)
    asked_for = sha256('{"to":"15550199","uuid":"aaa"}')
    hook.check(vonage(queried, payload_hash=asked_for), VONAGE_SECRET)
    hook.check(vonage(queried), VONAGE_SECRET)
    for wrong, why in [
        (vonage(asked), "no payload_hash: nothing signs the body"),
        (vonage(asked, payload_hash=sha256(b"{}")), "another body or query"),
        (vonage(queried, payload_hash=sha256(b"")), "another body or query"),
        (vonage(asked, iat=NOW - TOLERANCE_S - 1), "clock"),
        (vonage(asked, iat=None), "no number"),
        (vonage(asked, secret="another secret, which is long enough as well"), "not signed"),
        (vonage(asked, algorithm="HS512"), "not signed"),
        (vonage(asked, algorithm="none", secret=""), "not signed"),
        (sent({}, authorization="Bearer a.b.c"), "not signed"),
        (sent({}, authorization="Basic xyz"), "there is no web token"),
        (asked, "there is no web token"),
    ]:
        with pytest.raises(SignatureError, match=why):
            hook.check(wrong, VONAGE_SECRET)


def test_vonages_question_is_the_same_in_another_layout() -> None:
    hook, asked = WEBHOOKS["vonage"], sent({"uuid": "aaa", "to": "1"})
    signed = vonage(asked, payload_hash=sha256('{"uuid":"aaa","to":"1"}'))
    written = replace(signed, body=b'{"uuid": "\\u0061aa",  "to": "1"}')
    assert hook.check(written, VONAGE_SECRET) == hook.check(signed, VONAGE_SECRET)


# --- what is asked ---


@pytest.mark.parametrize(
    ("carrier", "request_", "call"),
    [
        ("twilio", post({"CallSid": "CA1", "From": "+1", "To": "+2"}), ("CA1", "+1", "+2", False)),
        (
            "twilio",
            sent({}, "GET", f"{AT}?CallSid=CA1&Direction=outbound-api"),
            ("CA1", "", "", True),
        ),
        ("telnyx", post({"CallSid": "v3:x", "To": "+2"}), ("v3:x", "", "+2", False)),
        ("plivo", post({"CallUUID": "u", "From": "1", "To": "2"}), ("u", "1", "2", False)),
        ("exotel", sent({}, "GET", f"{AT}?CallSid=c&CallFrom=1&To=2"), ("c", "1", "2", False)),
        ("vonage", sent({"uuid": "u", "from": "1", "to": "2"}), ("u", "1", "2", False)),
        ("vonage", sent({}, "GET", f"{AT}?uuid=u&to=2"), ("u", "", "2", False)),
        (
            "jambonz",
            sent({"call_sid": "s", "from": "+1", "to": "+2", "direction": "outbound", "sip": {}}),
            ("s", "+1", "+2", True),
        ),
    ],
)
def test_calls_are_read(carrier: str, request_: WebhookRequest, call: tuple[Any, ...]) -> None:
    assert WEBHOOKS[carrier].read(request_) == CarrierCall(*call)


def test_what_is_known_of_a_call_of_ours() -> None:
    asked = post({"CallSid": "CA1", "Direction": "outbound-api", "AnsweredBy": "machine_start"})
    call = WEBHOOKS["twilio"].read(asked)
    assert call.parameters == {"direction": "outbound", "answered_by": "machine_start"}
    assert CALL.parameters == {}
