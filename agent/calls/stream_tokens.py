"""Line reservations: single-use tokens for telephone streams that are on their way."""

import secrets
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agent.http.auth.principal import Principal
from agent.http.auth.token_format import digest_of
from agent.telephony.carriers.media_stream import StreamStarted
from latency_budget.account.clock import Clock

TOKEN_S: Final = 30
"""From our webhook's answer to the stream: carriers need one or two. Longer: a caller who hangs up
between the two keeps a line from others for as long."""


MAX_ENDED: Final = 64
"""Calls that are remembered after their end: that of one which failed at once may be told before
the answer to its order has come."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A stream that is believed, and what is known of its call from elsewhere."""

    principal: Principal
    """Whose call it is."""
    agent: str | None = None
    """Who was chosen to answer it; None: nobody yet."""
    caller: str = ""
    """Numbers, as the carrier's webhook told them: some streams do not."""
    called: str = ""
    told: Mapping[str, str] = field(default_factory=dict)
    """What counts as a parameter of the stream, whatever that says itself: `direction`, of calls
    that we placed "outbound"; `answered_by`, where the carrier listened for machines."""
    carrier: str = ""
    """By whom it comes; empty: by anybody."""
    call_id: str = ""
    """The carrier's, as its webhook has it."""
    is_named_by_stream: bool = False
    """The stream has the same id: one that has another is not of this call."""

    def may_be(self, carrier: str, started: StreamStarted) -> bool:
        """Whether a stream, as it describes itself, may be this call's."""
        if self.is_named_by_stream and started.call_id != self.call_id:
            return False
        return self.carrier in ("", carrier)


@dataclass(slots=True)
class _Issued:
    token: str
    call: ExpectedCall
    until_ns: int


class CallTokens:
    """Each good for one stream of the call that it was issued for. Belongs to the event loop.

    A call that has one is on its way, and its line is kept for it: `CallService.refusal` counts
    them. Nobody is given one while there is no line, so there are never more of them than lines.
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
        """Of one key."""
        return sum(each.call.principal.key_id == key_id for each in self._usable())

    def issue(self, call: ExpectedCall, life_s: float = TOKEN_S) -> str:
        """For a call whose stream comes within that time."""
        token = f"ct{secrets.token_hex(24)}"
        until_ns = self._clock.now_ns() + int(life_s * 1e9)
        self._issued[digest_of(token)] = _Issued(token, call, until_ns)
        return token

    def issued_for(self, principal: Principal, carrier: str, call_id: str) -> str | None:
        """What one has for this call already."""
        found = self._of_call(carrier, call_id)
        return next((each.token for each in found if each.call.principal == principal), None)

    def name(self, token: str, call_id: str) -> None:
        """The carrier has told its id of the call, and its stream will have the same."""
        if (issued := self._issued.get(digest_of(token))) is None:
            return
        issued.call = replace(issued.call, call_id=call_id, is_named_by_stream=True)
        if (issued.call.carrier, call_id) in self._ended:
            self.drop(token)

    def holds(self, token: str) -> bool:
        """Whether it may still be used."""
        issued = self._issued.get(digest_of(token))
        return issued is not None and issued.until_ns >= self._clock.now_ns()

    def redeem(self, token: str, carrier: str, started: StreamStarted) -> ExpectedCall | None:
        """What call it was issued for; None for a token that is unknown, used, old, or of another
        call than this stream's, which it stays good for."""
        issued = self._issued.get(digest_of(token))
        if issued is None or issued.until_ns < self._clock.now_ns():
            return None
        if not issued.call.may_be(carrier, started):
            return None
        self.drop(token)
        return issued.call

    def drop(self, token: str) -> None:
        """Nobody will come with it."""
        self._issued.pop(digest_of(token), None)

    def ended(self, by: Principal, carrier: str, call_id: str) -> None:
        """Somebody tells that a call is over. Those with a key know of their own only."""
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
