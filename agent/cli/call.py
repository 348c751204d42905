"""`halfsec call`: order an outbound telephone call from a running server."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx

from agent.config.local_urls import local_voice_url
from agent.config.sources import read_config
from agent.errors import HalfsecError
from agent.http.auth.cli_credentials import KEY_VARIABLE, CliCredentials, entry_at, entry_here
from agent.http.auth.telephony_credentials import CALLS_PATH
from agent.http.auth.tls import trust
from agent.telephony.outbound.order import NUMBER, DialError, number_of

TIMEOUT_S: Final = 30.0
"""Time limit of the request, in which the server waits for Twilio."""


def main(argv: Sequence[str] | None = None) -> int:
    """Order a call. Returns 0 once it rings. Raises HalfsecError."""
    options = _parser().parse_args(argv)
    order = {"to": _number(options.number, "The number")}
    if options.shown_number is not None:
        order["from"] = _number(options.shown_number, "--from")
    if options.agent is not None:
        order["agent"] = options.agent
    if options.url is None:
        config = read_config()
        url, entry = local_voice_url(config), entry_here(config, options.key)
    else:
        url, entry = options.url, entry_at(options.url, options.key)
    if options.ca is not None:
        entry = replace(entry, tls=trust(options.ca))
    placed = order_call(url, entry, order)
    if options.json:
        print(json.dumps(placed))
    else:
        print(
            f"Calling {placed['to']} from {placed['from']}: {placed['agent']} speaks when it is "
            f"answered. Twilio's call {placed['call']} is {placed['status']}."
        )
    return 0


def order_call(url: str, entry: CliCredentials, order: dict[str, str]) -> dict[str, Any]:
    """Post the order to the server at this address. Returns its answer. Raises HalfsecError."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    address = urlunsplit((scheme, parts.netloc, CALLS_PATH, "", ""))
    key = entry.api_key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    verify = True if entry.tls is None else entry.tls
    try:
        with httpx.Client(
            timeout=TIMEOUT_S, trust_env=False, headers=headers, verify=verify
        ) as http:
            answer = http.post(address, json=order)
        body = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DialError(
            f"There is no server at {address}: {error or type(error).__name__}. The call is made "
            "by a server that runs: halfsec serve"
        ) from None
    except ValueError:
        raise DialError(f"What answers at {address} is no halfsec.") from None
    if answer.status_code != 201:
        raise DialError(_problem(body, answer.status_code))
    if not isinstance(body, dict):
        raise DialError(f"What answers at {address} is no halfsec.")
    return body


def _problem(body: object, status: int) -> str:
    try:
        return str(body["error"]["message"])  # type: ignore[index]
    except (KeyError, TypeError):
        return f"The server answered {status}; it may be older than this command."


def _number(text: str, what: str) -> str:
    number = number_of(text)
    if number is None:
        raise HalfsecError(f"{what} must be {NUMBER}, not {text!r}.")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec call",
        description="Have the server that runs call a telephone number, by Twilio. It costs money.",
        epilog="example: halfsec call +493012345 --agent sales",
    )
    parser.add_argument("number", help="with its country, like +493012345")
    parser.add_argument("--agent", metavar="NAME", help="who speaks: one of [agents.NAME]")
    parser.add_argument(
        "--from",
        dest="shown_number",
        metavar="NUMBER",
        help="one of your account's; without it telephony.calls_from",
    )
    parser.add_argument(
        "--url", help="of the server; without it the one that the settings and PORT describe, here"
    )
    parser.add_argument(
        "--key", "--api-key", help=f"for the server; without it {KEY_VARIABLE}, if that is set"
    )
    parser.add_argument("--ca", metavar="PEM", help="a certificate to trust")
    parser.add_argument("--json", action="store_true", help="print what the server says, as JSON")
    return parser
