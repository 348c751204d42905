"""Carrier signatures: verification of webhooks and of stream handshakes.

What is signed is the address that the carrier called. Behind a proxy nothing in a request says
which that was, and what claims to (Host, X-Forwarded-Host) comes from whoever asks; so it is put
together of `telephony.public_url`, and path and query as they came. Where the two differ the log
says over which address the signature was checked: that is what a newcomer compares.

Where a secret is set, nobody but its carrier, or somebody with a key, is believed. Where none is,
a server that asks for keys asks carriers for one too.
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
from agent.telephony.carriers.webhook import SignatureError, Webhook, WebhookRequest

MAX_SHOWN_CHARS: Final = 400
"""Of an address that somebody called."""

_log = logging.getLogger(__name__)


class Asker(NamedTuple):
    """Who sent a webhook."""

    principal: Principal
    signed: bytes | None = None
    """What tells his question from all others that his carrier has signed (`Webhook.check`); None:
    it is not by a signature that he is believed."""


class PhoneSignatures:
    """The secrets are read from the environment once, when this is made."""

    def __init__(self, settings: TelephonySettings) -> None:
        self._settings = settings
        self._secrets = {key: secret_of(settings, carrier) for key, carrier in CARRIERS.items()}

    def url_of(self, scope: Scope, *, is_socket: bool = False) -> str:
        """As the carrier called it."""
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string", b"")
        path = raw.partition(b"?")[0].decode("latin-1")
        url = self._settings.address_of(path, is_socket=is_socket)
        return f"{url}?{query.decode('latin-1')}" if query else url

    def may_ask(self, carrier: Carrier, principal: Principal) -> HttpRefusal | None:
        """Why nobody without a key gets an answer here, whatever he sends."""
        if principal is UNPROVEN and not self._secrets[carrier.key]:
            return _nothing_to_check_by(carrier)
        return None

    def of_webhook(
        self, carrier: Carrier, webhook: Webhook, principal: Principal, request: WebhookRequest
    ) -> Asker | HttpRefusal:
        """Who asks. Raises WebhookError for what can't be read."""
        secret = self._secrets[carrier.key]
        if not secret or principal.kind not in ("open", "carrier"):
            return Asker(principal)
        try:
            return Asker(carrier_principal(carrier.name), webhook.check(request, secret))
        except SignatureError as error:
            return _not_signed(carrier.name, request.url, str(error))

    def of_stream(
        self, scope: Scope, carrier: Carrier, principal: Principal
    ) -> Principal | HttpRefusal:
        """Who opens a stream. An upgrade that is signed wrong is refused; one that is signed right
        shows who it is only where there can be no token: there is no time in it, so it can be sent
        again by whoever has seen it."""
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
    """Somebody whom a carrier's signature shows to be it."""
    return Principal(name, "carrier", key_id=f"carrier:{name}")


def secret_of(settings: TelephonySettings, carrier: Carrier) -> str:
    """Secret of a carrier's signatures; empty without one."""
    if not carrier.secret_setting:
        return ""
    named: str = getattr(settings, carrier.secret_setting)
    if not carrier.secret_setting.endswith("_env"):
        return named
    return os.environ.get(named, "").strip()


def _nothing_to_check_by(carrier: Carrier) -> HttpRefusal:
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
    # Numbers of callers are in the query, and this is logged.
    over = f"{address} and its query" if has_query else address
    return HttpRefusal(
        403,
        f"This request is not shown to be {name}'s: {problem}. It was checked over {over}. If the "
        "carrier calls another address, set telephony.public_url to that.",
        "signature_wrong",
    )
