"""Client secrets (`ek_`): short-lived browser keys, each bound to the session it was made for.

They live in memory, as hashes, until they expire; a server that restarts has forgotten them. Within
its time a secret may open any number of calls, and a call may outlive the secret. What the maker
set in the session stays so: `agent/realtime/protocol/fixed_fields.py`.
"""

import heapq
import json
from collections import Counter
from dataclasses import dataclass
from typing import Final

from agent.errors import ClientError

from .principal import Principal
from .token_format import id_in, is_token, new_token

SECRET_PREFIX: Final = "ek_"

MAX_SECRETS: Final = 10_000
MAX_OF_A_KEY: Final = 2000
"""Made with one key, so that it leaves room for others: a hundred calls a minute, with secrets of
twenty minutes."""
MAX_BYTES: Final = 64 << 20
"""Largest memory of the secrets' sessions as JSON, in bytes; one has at most half a megabyte."""


@dataclass(frozen=True, slots=True)
class _Secret:
    digest: bytes
    expires_ns: int
    holder: Principal
    num_bytes: int


class ClientSecrets:
    """All secrets of a server. Belongs to its event loop."""

    def __init__(self) -> None:
        self._secrets: dict[str, _Secret] = {}
        self._due: list[tuple[int, str]] = []
        """Heap of when which expires."""
        self._num_bytes = 0
        self._num_of: Counter[str] = Counter()
        """Number of secrets by the key that made them."""

    def __len__(self) -> int:
        return len(self._secrets)

    def mint(self, holder: Principal, lifetime_s: int, now_ns: int) -> str:
        """A new secret, by which its holder is known. Raises ClientError where there are too
        many."""
        self._forget(now_ns)
        num_bytes = len(json.dumps(holder.session))
        if (
            len(self._secrets) >= MAX_SECRETS
            or self._num_of[holder.key_id] >= MAX_OF_A_KEY
            or self._num_bytes + num_bytes > MAX_BYTES
        ):
            raise ClientError(
                "Too many client secrets wait to be used; try again when some have expired, and "
                "give them shorter lives with expires_after.",
                code="rate_limit_exceeded",
            )
        token = new_token(SECRET_PREFIX)
        expires_ns = now_ns + lifetime_s * 10**9
        self._secrets[token.token_id] = _Secret(token.digest, expires_ns, holder, num_bytes)
        self._num_bytes += num_bytes
        self._num_of[holder.key_id] += 1
        heapq.heappush(self._due, (expires_ns, token.token_id))
        return token.text

    def find(self, text: str, now_ns: int) -> Principal | None:
        """Principal of a secret; None if it is unknown or has expired. One comparison."""
        self._forget(now_ns)
        secret = self._secrets.get(id_in(SECRET_PREFIX, text))
        if not is_token(text, None if secret is None else secret.digest) or secret is None:
            return None
        return secret.holder

    def _forget(self, now_ns: int) -> None:
        """Those that have expired."""
        while self._due and self._due[0][0] <= now_ns:
            _, token_id = heapq.heappop(self._due)
            secret = self._secrets.pop(token_id)
            self._num_bytes -= secret.num_bytes
            key_id = secret.holder.key_id
            self._num_of[key_id] -= 1
            if not self._num_of[key_id]:
                del self._num_of[key_id]
