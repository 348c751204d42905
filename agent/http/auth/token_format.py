"""Token format: how random keys are generated, looked up and compared.

Theory of operation: a key is PREFIX + ID + "_" + SECRET. The id is public: it finds the record, so
looking up costs the same with one key or a thousand. The secret has 256 bits from the system's
generator, so its plain SHA-256 can't be turned back, and a slow hash would only help an attacker to
keep the processor busy. Every text that is presented is compared exactly once, digest with digest
in constant time, be its id known or not: how long that takes says nothing of what was right.
"""

import hashlib
import secrets
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

RESUME_PREFIX: Final = "resume_"
"""Beginning of the tokens that resume calls."""

MAX_TOKEN_CHARS: Final = 256
"""Ours have 60. What is longer is not hashed."""

_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_NOBODY: Final = bytes(32)
"""No text is known whose SHA-256 this is."""


@dataclass(frozen=True, slots=True)
class NewToken:
    token_id: str
    text: str
    """Shown once, kept nowhere."""
    digest: bytes


def new_token(prefix: str) -> NewToken:
    """New token of letters, digits, "-" and "_" only: it has to fit into a WebSocket's
    subprotocol."""
    token_id = secrets.token_hex(_ID_BYTES)
    text = f"{prefix}{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return NewToken(token_id, text, digest_of(text))


def id_in(prefix: str, text: str) -> str:
    """The public part of what claims to be a key."""
    return text.removeprefix(prefix)[: 2 * _ID_BYTES]


def digest_of(text: str) -> bytes:
    """32 bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_token(text: str, digest: bytes | None) -> bool:
    """True if `text` is the key with this digest; None: no key has its id."""
    presented = digest_of(text[:MAX_TOKEN_CHARS])
    matches = compare_digest(presented, _NOBODY if digest is None else digest)
    return matches and digest is not None and len(text) <= MAX_TOKEN_CHARS
