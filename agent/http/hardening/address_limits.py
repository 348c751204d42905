"""Limits per address: connections, requests a second, calls.

Theory of operation: connections and requests are judged by the address of the TCP peer, before a
byte of theirs is read, so that turning one away costs a tenth of a millisecond. A client that is
turned away for coming too fast is not counted: others behind the same address come in as soon as
there is room. Proxies that the operator trusts speak for many, so they are not judged here; calls
are, by the address that such a proxy gives.

Memory: counts exist while something is counted, and there are only so many connections. The paces
of the latest `MAX_ADDRESSES` addresses are kept; a client that has more of those is limited by the
number of connections in all.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.config.access import AccessSettings
from agent.http.peer_address import NOWHERE, is_within, networks_of, place_of

from .leaky_bucket import LeakyBucket

MAX_ADDRESSES: Final = 4096
BURST_S: Final = 2.0
"""So many seconds' worth may come at once. A browser that opens a page asks for forty files."""


@dataclass(slots=True)
class _Paces:
    connections: LeakyBucket | None
    requests: LeakyBucket | None


class AddressLimits:
    """Limits of connections and requests by address. Belongs to the event loop."""

    def __init__(self, settings: AccessSettings) -> None:
        """Raises ConfigError where the trusted proxies are none."""
        self._settings = settings
        self._proxies = networks_of(settings.trusted_proxies)
        self._paces: OrderedDict[str, _Paces] = OrderedDict()
        self._num_open: Counter[str] = Counter()

    def __len__(self) -> int:
        """Addresses that are remembered."""
        return len(self._paces.keys() | self._num_open.keys())

    def place(self, address: str) -> str | None:
        """Key under which this peer is counted; None: it is not limited."""
        return None if is_within(address, self._proxies) else place_of(address)

    def may_connect(self, place: str | None, now_s: float) -> bool:
        """True if one more connection fits the rate of its address."""
        paces = self._of(place, now_s)
        return paces is None or paces.connections is None or paces.connections.take(1, now_s)

    def is_full(self, place: str | None) -> bool:
        """True if the address holds as many connections as it may, those that are being opened
        included."""
        most = self._settings.connections_per_address
        return place is not None and bool(most) and self._num_open[place] >= most

    def opened(self, place: str | None) -> None:
        if place is not None:
            self._num_open[place] += 1

    def closed(self, place: str | None) -> None:
        if place is not None:
            self._num_open[place] -= 1
            if not self._num_open[place]:  # `-=` of a Counter looks at every address
                del self._num_open[place]

    def wait_s(self, place: str | None, now_s: float) -> float:
        """Count a further request. How long the one behind it has to wait."""
        paces = self._of(place, now_s)
        if paces is None or paces.requests is None:
            return 0.0
        return paces.requests.add(1, now_s)

    def _of(self, place: str | None, now_s: float) -> _Paces | None:
        if place is None:
            return None
        paces = self._paces.pop(place, None)
        if paces is None:
            paces = _Paces(
                _pace(self._settings.connections_per_s, now_s),
                _pace(self._settings.requests_per_s, now_s),
            )
        self._paces[place] = paces
        if len(self._paces) > MAX_ADDRESSES:
            self._paces.popitem(last=False)
        return paces


class CallsByAddress:
    """Calls in progress by address. Belongs to the event loop."""

    def __init__(self, settings: AccessSettings) -> None:
        self._most = settings.calls_per_address
        self._num_held: Counter[str] = Counter()

    def are_all_held(self, scope: Mapping[str, Any]) -> bool:
        """True if the address of the request holds as many calls as it may."""
        return bool(self._most) and self._num_held[_place(scope)] >= self._most

    def begun(self, scope: Mapping[str, Any]) -> None:
        self._num_held[_place(scope)] += 1

    def ended(self, scope: Mapping[str, Any]) -> None:
        self._num_held -= Counter([_place(scope)])


def _pace(per_s: int, now_s: float) -> LeakyBucket | None:
    return LeakyBucket(per_s, BURST_S * per_s, now_s) if per_s else None


def _place(scope: Mapping[str, Any]) -> str:
    """Address of the client, behind a trusted proxy as the proxy reports it."""
    return place_of(str((scope.get("client") or (NOWHERE, 0))[0]))
