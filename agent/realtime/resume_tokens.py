"""Resume tokens: a client resumes its call with one after its connection broke.

A token works once: a client that resumes with it receives another. But the network may break again
before the new token has reached the client, which then has the first only. So a token is used up
when its successor is known to have arrived: with the first frame that the client sends on the new
connection, or when the successor itself is used. Until then it works again, for the same holder.

Tokens are bound to the key that the call was opened with, kept as hashes, and compared in constant
time: see `agent/http/auth/token_format.py`.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Generic, TypeVar

from agent.http.auth.token_format import RESUME_PREFIX, id_in, is_token, new_token

Holder = TypeVar("Holder")


@dataclass(frozen=True, slots=True)
class _Known(Generic[Holder]):
    digest: bytes
    holder: Holder
    key_id: str


class ResumeTokens(Generic[Holder]):
    """Resume tokens of all calls. A call has two at most. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: dict[str, _Known[Holder]] = {}
        self._ids: defaultdict[Holder, list[str]] = defaultdict(list)
        """Ids of each holder's tokens, the newest last."""

    def __len__(self) -> int:
        return len(self._known)

    def issue(self, holder: Holder, key_id: str) -> str:
        """Another token, for the principal with this `key_id`."""
        token = new_token(RESUME_PREFIX)
        self._known[token.token_id] = _Known(token.digest, holder, key_id)
        self._ids[holder].append(token.token_id)
        return token.text

    def known(self, holder: Holder) -> list[tuple[str, bytes]]:
        """Ids and SHA-256 digests of a holder's tokens, the newest last."""
        return [(token_id, self._known[token_id].digest) for token_id in self._ids.get(holder, ())]

    def adopt(self, holder: Holder, key_id: str, token_id: str, digest: bytes) -> None:
        """Know a token that another server issued for the call of this holder."""
        self._known[token_id] = _Known(digest, holder, key_id)
        self._ids[holder].append(token_id)

    def find(self, text: str, key_id: str) -> Holder | None:
        """Whose token this is; None where it is unknown, used up, or not this principal's. The
        holder's others are void from then on."""
        token_id = id_in(RESUME_PREFIX, text)
        known = self._known.get(token_id)
        if not is_token(text, None if known is None else known.digest) or known is None:
            return None
        if known.key_id != key_id:
            return None
        self._keep(known.holder, token_id)
        return known.holder

    def arrived(self, holder: Holder) -> None:
        """The newest token has reached the client."""
        self._keep(holder, self._ids[holder][-1])

    def forget(self, holder: Holder) -> None:
        """The call is over."""
        for token_id in self._ids.pop(holder, ()):
            del self._known[token_id]

    def _keep(self, holder: Holder, kept: str) -> None:
        for token_id in self._ids[holder]:
            if token_id != kept:
                del self._known[token_id]
        self._ids[holder] = [kept]
