"""Line reservations: single-use tokens for telephone streams that are on their way."""

import secrets
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from agent.http.auth.principal import Principal
from agent.http.auth.token_format import digest_of
from agent.telephony.carriers.media_stream import StreamStarted
from latency_budget.account.clock import Clock

TOKEN_S: Final = 30
"""From our webhook's answer to the stream: carriers need one or two. Longer: a caller who hangs up
between the two keeps a line from others for as long."""


MAX_ENDED: Final = 64
"""Ended calls that are remembered: the end of a call that fails at once may arrive before the
answer to its order."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A stream that is believed, and what is known of its call from elsewhere."""

    principal: Principal
    """Whose call it is."""
    agent: str | None = None
    """Name of the agent that was chosen to answer; None: not chosen yet."""
    caller: str = ""
    """Numbers of caller and called party from the carrier's webhook; some streams do not have
    them."""
    called: str = ""
    told: Mapping[str, str] = field(default_factory=dict)
    """Parameters that override those of the stream: `direction`, "outbound" for calls that the
    service placed; `answered_by`, where the carrier detects machines."""
    carrier: str = ""
    """Name of the carrier that will stream the call; empty: any."""
    call_id: str = ""
    """The carrier's, as its webhook has it."""
    is_named_by_stream: bool = False
    """The stream has the same id: one that has another is not of this call."""

    def may_be(self, carrier: str, started: StreamStarted) -> bool:
        """True if a stream, as it describes itself, can belong to this call."""
        if self.is_named_by_stream and started.call_id != self.call_id:
            return False
        return self.carrier in ("", carrier)


@dataclass(slots=True)
class _Issued:
    token: str
    call: ExpectedCall
    until_ns: int
    publication: Literal["none", "begun", "done"] = "none"
    """"done": other servers can find it."""


class CallTokens:
    """Tokens of expected streams, each good for one stream of its call. Belongs to the event loop.

    A call with a token is on its way, and a line is kept for it: `CallService.refusal` counts
    tokens. No token is issued while no line is free, so there are never more tokens than lines.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: dict[bytes, _Issued] = {}
        self._ended: deque[tuple[str, str]] = deque(maxlen=MAX_ENDED)
        """Calls that are over: carrier and its id."""

    def __len__(self) -> int:
        """Those that may still be used."""
        return len(self._usable())

    def num_of(self, key_id: str) -> int:
        """Number of usable tokens of one key."""
        return sum(each.call.principal.key_id == key_id for each in self._usable())

    def issue(self, call: ExpectedCall, life_s: float = TOKEN_S) -> str:
        """Issue a token for a call whose stream comes within `life_s` seconds."""
        token = f"ct{secrets.token_hex(24)}"
        until_ns = self._clock.now_ns() + int(life_s * 1e9)
        self._issued[digest_of(token)] = _Issued(token, call, until_ns)
        return token

    def adopt(self, token: str, call: ExpectedCall, life_s: float) -> None:
        """Know a token that another server issued and this one has claimed."""
        until_ns = self._clock.now_ns() + int(life_s * 1e9)
        self._issued[digest_of(token)] = _Issued(token, call, until_ns)

    def begin_publication(self, token: str) -> tuple[ExpectedCall, float] | None:
        """Call and life in s of a token that other servers can't find, and are to. None where it
        can't be used, or they can find it, or will. `published` or `claimed` follows."""
        issued = self._issued.get(digest_of(token))
        now_ns = self._clock.now_ns()
        if issued is None or issued.until_ns < now_ns or issued.publication != "none":
            return None
        issued.publication = "begun"
        return issued.call, (issued.until_ns - now_ns) / 1e9

    def published(self, token: str) -> None:
        """Note that other servers can find the token."""
        if (issued := self._issued.get(digest_of(token))) is not None:
            issued.publication = "done"

    def claimed(self, token: str) -> None:
        """Note that other servers can't find the token, or not any more."""
        if (issued := self._issued.get(digest_of(token))) is not None:
            issued.publication = "none"

    def is_published(self, token: str) -> bool:
        """True if other servers can find the token."""
        issued = self._issued.get(digest_of(token))
        return issued is not None and issued.publication == "done"

    def issued_for(self, principal: Principal, carrier: str, call_id: str) -> str | None:
        """Token that was already issued for this call to this principal; None: none."""
        found = self._of_call(carrier, call_id)
        return next((each.token for each in found if each.call.principal == principal), None)

    def name(self, token: str, call_id: str) -> None:
        """Note the carrier's id of the call, which its stream will have too."""
        if (issued := self._issued.get(digest_of(token))) is None:
            return
        issued.call = replace(issued.call, call_id=call_id, is_named_by_stream=True)
        if (issued.call.carrier, call_id) in self._ended:
            self.drop(token)

    def holds(self, token: str) -> bool:
        """True while the token can be used."""
        issued = self._issued.get(digest_of(token))
        return issued is not None and issued.until_ns >= self._clock.now_ns()

    def redeem(self, token: str, carrier: str, started: StreamStarted) -> ExpectedCall | None:
        """Use a token. Returns its call; None for a token that is unknown, used or expired, or
        issued for another call than this stream's, for which it stays good."""
        issued = self._issued.get(digest_of(token))
        if issued is None or issued.until_ns < self._clock.now_ns():
            return None
        if not issued.call.may_be(carrier, started):
            return None
        self.drop(token)
        return issued.call

    def drop(self, token: str) -> None:
        """Discard a token that no stream will bring."""
        self._issued.pop(digest_of(token), None)

    def ended(self, by: Principal, carrier: str, call_id: str) -> None:
        """Note a report that a call is over. A principal with a key can report its own calls
        only."""
        for each in self._of_call(carrier, call_id):
            if by.kind == "carrier" or by.key_id == each.call.principal.key_id:
                self.drop(each.token)
        if by.kind == "carrier":
            self._ended.append((carrier, call_id))

    def _of_call(self, carrier: str, call_id: str) -> list[_Issued]:
        named = carrier, call_id
        return [each for each in self._usable() if (each.call.carrier, each.call.call_id) == named]

    def _usable(self) -> Collection[_Issued]:
        now_ns = self._clock.now_ns()
        self._issued = {
            digest: each for digest, each in self._issued.items() if each.until_ns >= now_ns
        }
        return self._issued.values()
