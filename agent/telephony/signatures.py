"""Carrier signatures: verification of webhooks and of stream handshakes.

A carrier signs the address that it called. Behind a proxy no trustworthy part of a request contains
that address: Host and X-Forwarded-Host come from the client. So the address is composed of
`telephony.public_url` and the path and query as received. If a signature is wrong, the log shows
the address over which it was checked, to compare with the carrier's settings.

With a secret set, only its carrier or a client with a key is accepted. Without one, a server that
requires keys requires one of carriers too.
"""

import logging
import os
from typing import Final, NamedTuple

from starlette.types import Scope

from agent.config.telephony import TelephonySettings
from agent.http.auth.principal import UNPROVEN, Principal
from agent.http.refusal import HttpRefusal
from agent.telephony.carriers.carrier import Carrier
from agent.telephony.carriers.table import CARRIERS
from agent.telephony.carriers.webhook import (
    SignatureError,
    Signed,
    Webhook,
    WebhookRequest,
)

MAX_SHOWN_CHARS: Final = 400
"""Characters of a called address that are shown."""

_log = logging.getLogger(__name__)


class WebhookSender(NamedTuple):
    """Authenticated sender of a webhook."""

    principal: Principal
    signed: Signed | None = None
    """None: authenticated without a signature."""


class PhoneSignatures:
    """Verifies signatures. The constructor reads the secrets from the environment."""

    def __init__(self, settings: TelephonySettings) -> None:
        self._settings = settings
        self._secrets = {key: secret_of(settings, carrier) for key, carrier in CARRIERS.items()}

    def url_of(self, scope: Scope, *, is_socket: bool = False) -> str:
        """Address of a request as the carrier called it."""
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string", b"")
        path = raw.partition(b"?")[0].decode("latin-1")
        url = self._settings.address_of(path, is_socket=is_socket)
        return f"{url}?{query.decode('latin-1')}" if query else url

    def may_ask(self, carrier: Carrier, principal: Principal) -> HttpRefusal | None:
        """Refusal for a sender without a key where the carrier has no secret, before the body is
        read."""
        if principal is UNPROVEN and not self._secrets[carrier.key]:
            return _no_secret(carrier)
        return None

    def of_webhook(
        self, carrier: Carrier, webhook: Webhook, principal: Principal, request: WebhookRequest
    ) -> WebhookSender | HttpRefusal:
        """Authenticate a webhook's sender. Raises WebhookError for an unreadable request."""
        secret = self._secrets[carrier.key]
        if not secret or principal.kind not in ("open", "carrier"):
            return WebhookSender(principal)
        try:
            return WebhookSender(carrier_principal(carrier.name), webhook.check(request, secret))
        except SignatureError as error:
            return _not_signed(carrier.name, request.url, str(error))

    def of_stream(
        self, scope: Scope, carrier: Carrier, principal: Principal
    ) -> Principal | HttpRefusal:
        """Authenticate a stream's handshake. An upgrade with a wrong signature is refused. A right
        signature is enough only where there can be no token: it contains no time, so it can be
        replayed."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        upgrade = carrier.signed_upgrade
        if upgrade is None or upgrade.header not in headers:
            return principal
        secret = self._secrets[carrier.key]
        if not secret or not self._settings.public_url:
            return principal
        url = self.url_of(scope, is_socket=True)
        try:
            upgrade.check(url, headers, secret)
        except SignatureError as error:
            refusal = _not_signed(carrier.name, url, str(error))
            _log.warning("%s: refused a stream: %s", carrier.key, refusal.message)
            return refusal
        is_trusted: bool = getattr(self._settings, upgrade.trust_setting)
        is_enough = is_trusted and principal.kind in ("open", "carrier")
        return carrier_principal(carrier.name) if is_enough else principal


def carrier_principal(name: str) -> Principal:
    """Principal of a carrier that is authenticated by its signature."""
    return Principal(name, "carrier", key_id=f"carrier:{name}")


def secret_of(settings: TelephonySettings, carrier: Carrier) -> str:
    """Secret of a carrier's signatures; empty without one."""
    if not carrier.secret_setting:
        return ""
    named: str = getattr(settings, carrier.secret_setting)
    if not carrier.secret_setting.endswith("_env"):
        return named
    return os.environ.get(named, "").strip()


def _no_secret(carrier: Carrier) -> HttpRefusal:
    name, setting = carrier.name, carrier.secret_setting
    if not setting:
        way = (
            f"{name} signs nothing, so its address needs a key in it, like https://halfsec:KEY@..."
        )
    else:
        way = (
            f"{name}'s signature can't be checked before telephony.{setting} says by what; or put "
            "a key into the address, like https://halfsec:KEY@..."
        )
    return HttpRefusal(
        401, f"This server needs a key. {way} (halfsec keys add NAME makes one).", "no_signature"
    )


def _not_signed(name: str, url: str, problem: str) -> HttpRefusal:
    address, has_query, _ = url[:MAX_SHOWN_CHARS].partition("?")
    # The query contains callers' numbers, and the message is logged.
    over = f"{address} and its query" if has_query else address
    return HttpRefusal(
        403,
        f"This request is not shown to be {name}'s: {problem}. It was checked over {over}. If the "
        "carrier calls another address, set telephony.public_url to that.",
        "signature_wrong",
    )
