"""`halfsec doctor --telephony`: check of the public address as a carrier would use it.

It connects as a carrier does, to the public address through the internet and every proxy, and signs
like Twilio. So it finds what a check on the machine can't: a name that does not resolve, a
certificate that is not trusted, a proxy that forwards another host name or no WebSockets, a server
that was started with other settings.
"""

import asyncio
import importlib.util
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from secrets import token_hex
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidStatus

from agent.config.schema import Config
from agent.config.telephony import E164
from agent.http.auth.telephony_credentials import PREFIX
from agent.server.startup_checks.telephony import telephony_problems
from agent.telephony.carriers.table import CARRIERS
from agent.telephony.carriers.twilio import CARRIER as TWILIO
from agent.telephony.carriers.twilio import SIGNATURE, signature_of
from agent.telephony.carriers.webhook import FORM
from agent.telephony.outbound.twilio_account import INSTALL_PHONE, TwilioAccount
from agent.telephony.signatures import secret_of

from .doctor import Finding, Section, show

TIMEOUT_S: Final = 10.0
"""Time limit of a request. Carriers wait for some fifteen seconds in all."""

VOICE: Final = f"{PREFIX}{TWILIO.key}/voice"
STREAM: Final = f"{PREFIX}{TWILIO.key}/stream"
STATUS: Final = f"{PREFIX}{TWILIO.key}/status"
RESTART: Final = "start halfsec serve again, in an environment and with settings like these"

TWILIO_PORT: Final = 443
"""The only port to which Twilio streams (https://www.twilio.com/docs/api/errors/31910)."""

NOT_TRIED: Final = "not tried"

_NO_NETWORK: Final = "does the name exist, and has this machine a network?"
_DOES_IT_RUN: Final = "does halfsec serve run, and the tunnel or proxy in front of it?"


def main(config: Config, tls: ssl.SSLContext | None = None) -> int:
    """Print the report. Returns 1 where calls would not come in. `tls`: certificates to trust
    besides those of the system."""
    findings = show(examine(config, tls))
    wrong = [finding.name for finding in findings if finding.verdict == "WRONG"]
    if wrong:
        print(f"Calls would not come in: {', '.join(wrong)} (see above).")
        return 1
    if any(finding.name == NOT_TRIED for finding in findings):
        print("Nothing is wrong that can be seen; no call was tried.")
    else:
        print("Calls come in, as far as that can be seen without one.")
    return 0


def examine(config: Config, tls: ssl.SSLContext | None = None) -> Iterator[Section]:
    """The report, section by section."""
    with httpx.Client(timeout=TIMEOUT_S, verify=tls or True) as http:
        address = tuple(_address(config, http))
        yield Section("Public address", address)
        is_there = not any(each.verdict == "WRONG" for each in address)
        if is_there:
            yield Section("As Twilio would call", tuple(_as_twilio(config, http, tls)))
    yield Section("What to paste at the carrier, and its secret", tuple(_carriers(config)))
    yield Section("Numbers", tuple(_numbers(config)))
    yield Section("Calls to others (halfsec call)", tuple(_dialing(config)))


def _as_twilio(config: Config, http: httpx.Client, tls: ssl.SSLContext | None) -> Iterator[Finding]:
    name = config.telephony.twilio_auth_token_env
    if not secret_of(config.telephony, TWILIO):
        yield Finding(NOT_TRIED, f"{name} is not set in this shell", "note", "set it as there")
        return
    yield _webhook(config, http)
    yield _stream(config, tls)


# --- the address ---


def _address(config: Config, http: httpx.Client) -> Iterator[Finding]:
    url = config.telephony.public_url
    if not url:
        remedy = 'in halfsec.toml: [telephony] public_url = "https://voice.example.com"'
        yield Finding("telephony.public_url", "not set: carriers can't stream", "WRONG", remedy)
        return
    host, port = config.telephony.public_host, urlsplit(url).port or 443
    if port == TWILIO_PORT:
        yield Finding("telephony.public_url", url, "ok")
    else:
        remedy = f"have it taken at port {TWILIO_PORT}, unless your carrier takes others"
        yield Finding("telephony.public_url", f"{url}: not for Twilio", "note", remedy)
    resolved = _resolved(host, port)
    yield resolved
    if resolved.verdict == "WRONG":
        return
    health = _health(config, http)
    yield health
    if health.verdict == "ok":
        yield _readiness(config, http)


def _resolved(host: str, port: int) -> Finding:
    try:
        found = {
            str(each[4][0]) for each in socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)
        }
    except (OSError, UnicodeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        return Finding(host, f"does not resolve: {problem}", "WRONG", _NO_NETWORK)
    shown = ", ".join(sorted(found))
    if all(ipaddress.ip_address(each.partition("%")[0]).is_private for each in found):
        return Finding(
            host, shown, "note", "private: carriers can't get there, unless by other DNS"
        )
    return Finding(host, shown, "ok")


def _health(config: Config, http: httpx.Client) -> Finding:
    url = config.telephony.address_of("/healthz")
    try:
        answer = http.get(url)
    except httpx.HTTPError as error:
        return Finding("/healthz", _line(error), "WRONG", _remedy(error))
    if answer.status_code == 200 and answer.text == "ok\n":
        return Finding("/healthz", "halfsec answers", "ok")
    if _code(answer) == "host_not_allowed":
        remedy = f"{RESTART}; a proxy has to pass the Host header on"
        return Finding("/healthz", _message(answer), "WRONG", remedy)
    what = f"{answer.status_code} {_message(answer)}"
    return Finding("/healthz", f"something else answers: {what}", "WRONG", _DOES_IT_RUN)


def _readiness(config: Config, http: httpx.Client) -> Finding:
    try:
        body: Any = http.get(config.telephony.address_of("/readyz")).json()
        status, needs_key = str(body["status"]), bool(body["needs_key"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return Finding("/readyz", _line(error), "WRONG", _DOES_IT_RUN)
    if not needs_key:
        remedy = "anyone who knows the address can make calls: leave access.require_key at auto"
        return Finding("/readyz", f"{status}, and needs no key", "note", remedy)
    ready = status in ("ready", "degraded")
    remedy = "" if ready else "callers would hear that they should call again later"
    return Finding("/readyz", status, "ok" if ready else "note", remedy)


# --- as Twilio would call ---


def _webhook(config: Config, http: httpx.Client) -> Finding:
    """Post the webhook of a fictitious call, and then its end: the server reserves a session."""
    number = next(iter(config.telephony.numbers), "+15550100")
    call = {"CallSid": f"CAdoctor{token_hex(8)}", "From": "+15550100", "To": number}
    try:
        answer = _posted(VOICE, {**call, "CallStatus": "ringing"}, config, http)
        if answer.status_code == 200:
            _posted(STATUS, {**call, "CallStatus": "canceled"}, config, http)
    except httpx.HTTPError as error:
        return Finding(VOICE, _line(error), "WRONG", _remedy(error))
    if answer.status_code == 200:
        return _instructions(answer.text, config)
    remedy = {
        "signature_wrong": "is that the address? If so the server has another auth token: "
        + RESTART,
        "no_signature": f"the server that runs has no auth token: {RESTART}",
        "not_configured": f"the server that runs has no public address: {RESTART}",
    }.get(_code(answer), "is that halfsec, and of this version?")
    return Finding(VOICE, f"{answer.status_code} {_message(answer)}", "WRONG", remedy)


def _posted(
    path: str, form: Mapping[str, str], config: Config, http: httpx.Client
) -> httpx.Response:
    """Post a signed form. Raises httpx.HTTPError."""
    url = config.telephony.address_of(path)
    signature = signature_of(url, form.items(), secret_of(config.telephony, TWILIO))
    headers = {"Content-Type": FORM, SIGNATURE: signature}
    return http.post(url, content=urlencode(form), headers=headers)


def _instructions(text: str, config: Config) -> Finding:
    wanted = config.telephony.address_of(STREAM, is_socket=True)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return Finding(VOICE, "the answer is no TwiML", "WRONG", _DOES_IT_RUN)
    streams = [each.get("url", "") for each in root.iter("Stream")]
    if streams == [wanted]:
        return Finding(VOICE, f"signature taken; calls go to {wanted}", "ok")
    if streams:
        remedy = f"the server that runs has another public_url: {RESTART}"
        return Finding(VOICE, f"calls would go to {streams[0]}, not {wanted}", "WRONG", remedy)
    said = " ".join(each.text or each.tag for each in root)
    return Finding(VOICE, f"signature taken; a caller would get: {said}", "note")


def _stream(config: Config, tls: ssl.SSLContext | None) -> Finding:
    """Open a stream without a token, and close it: it belongs to no call."""
    url = config.telephony.address_of(STREAM, is_socket=True)
    signature = signature_of(url, (), secret_of(config.telephony, TWILIO))
    try:
        asyncio.run(_opened(url, {SIGNATURE: signature}, tls))
    except InvalidStatus as error:
        body = httpx.Response(error.response.status_code, content=bytes(error.response.body or b""))
        what = f"{body.status_code} {_message(body)}"
        if body.status_code == 503:
            return Finding(STREAM, what, "note", "it would be turned away now")
        remedy = "the proxy has to pass WebSockets on, with Upgrade and Connection"
        return Finding(STREAM, what, "WRONG", RESTART if _code(body) else remedy)
    except (OSError, TimeoutError, InvalidHandshake) as error:
        return Finding(STREAM, _line(error), "WRONG", _DOES_IT_RUN)
    return Finding(STREAM, "a WebSocket gets through, signature taken", "ok")


async def _opened(url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
    """Open and close a WebSocket. `websockets.sync` reads in one thread and writes in another,
    which Python's TLS does not support (https://github.com/python/cpython/issues/151508): now and
    then a request was lost."""
    async with connect(url, ssl=tls or True, additional_headers=headers, open_timeout=TIMEOUT_S):
        pass


# --- what is set ---


def _carriers(config: Config) -> Iterator[Finding]:
    settings = config.telephony
    for name, carrier in CARRIERS.items():
        if carrier.webhook is None:
            continue
        path = f"{PREFIX}{name}/voice"
        url = settings.address_of(path) if settings.public_url else path
        if not carrier.secret_setting:
            with_key = url.replace("https://", "https://halfsec:KEY@")
            yield Finding(name, f"{with_key}  (signs nothing: a key of halfsec keys add)")
            continue
        named: str = getattr(settings, carrier.secret_setting)
        is_variable = carrier.secret_setting.endswith("_env")
        source = named if is_variable else f"telephony.{carrier.secret_setting}"
        library = carrier.library
        if not secret_of(settings, carrier):
            yield Finding(name, f"{url}  ({source} is not set)", "note")
        elif library is not None and importlib.util.find_spec(library.module) is None:
            remedy = f"pip install 'halfsec[{library.extra}]'"
            yield Finding(name, f"{url}  ({library.package} is missing)", "WRONG", remedy)
        else:
            yield Finding(name, f"{url}  ({source} is set)", "ok")
    yield Finding(
        "news of calls", "the same with /status for /voice, where a carrier asks for that"
    )


def _numbers(config: Config) -> Iterator[Finding]:
    if not config.telephony.numbers:
        yield Finding("telephony.numbers", "none: the default agent answers at all")
    for number, agent in config.telephony.numbers.items():
        if agent in config.agents and not re.fullmatch(E164, number):
            yield Finding(number, agent, "note", "carriers write numbers like +493012345")
        elif agent in config.agents:
            yield Finding(number, f"{agent} answers", "ok")
    for key, problem in telephony_problems(config):
        yield Finding(key, problem, "WRONG", "halfsec serve would not start")


def _dialing(config: Config) -> Iterator[Finding]:
    problem = TwilioAccount(config.telephony).problem
    if problem is not None:
        remedy = INSTALL_PHONE if "library" in problem else ""
        yield Finding("Twilio", problem, "note", remedy)
    else:
        yield Finding("Twilio", "the library is installed, the account is set", "ok")
    if config.telephony.own_twiml:
        remedy = "unless TwiML of your own names the stream: leave telephony.own_twiml at false"
        yield Finding("own_twiml", "a signature that was seen once opens streams", "note", remedy)
    beginnings = config.telephony.calls_to
    listed = ", ".join(beginnings) or "any number from this machine, none with a key"
    yield Finding("may be called", listed)
    numbers = config.telephony.numbers
    own = config.telephony.calls_from or (next(iter(numbers)) if len(numbers) == 1 else "")
    if own:
        yield Finding("calls from", own, "ok")
    else:
        yield Finding("calls from", "no number", "note", "set telephony.calls_from, or use --from")


# --- words ---


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _remedy(error: httpx.HTTPError) -> str:
    if "CERTIFICATE" in str(error).upper():
        return "carriers take only certificates of public authorities (Let's Encrypt is one)"
    return _DOES_IT_RUN


def _error(answer: httpx.Response) -> dict[str, Any]:
    try:
        error = json.loads(answer.text)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _code(answer: httpx.Response) -> str:
    return str(_error(answer).get("code") or "")


def _message(answer: httpx.Response) -> str:
    return str(_error(answer).get("message") or " ".join(answer.text.split())[:80])
