"""API keys: the file of hashes that `halfsec keys` writes, and the set that the server checks.

The file is only ever replaced whole, under a lock that the commands share, so that a reader finds
it as it was or as it is, and two commands at once lose nothing. It has names, limits and hashes,
from which no key can be made. Its existence means that a key was made once: a server that its first
key has closed does not open again because the last key is revoked.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from agent.config.home import halfsec_home
from agent.errors import HalfsecError
from latency_budget.storage.private_files import make_private_folder

from .principal import FILE_KEY, KeyLimits
from .token_format import id_in, is_token, new_token

KEY_PREFIX: Final = "hs_"
MAX_KEYS: Final = 1000
"""More are not keys of people any more: use `access.jwt_issuer`."""
MAX_FILE_BYTES: Final = 4 << 20

_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


class KeyFileError(HalfsecError):
    """The keys can't be read, or not be changed so. The message says what to do."""

    def __init__(self, message: str):
        super().__init__(message, code="keys")


@dataclass(frozen=True, slots=True)
class Key:
    """One key, with the digest of its secret in place of the secret."""

    token_id: str
    name: str
    digest: bytes
    created_unix_s: int
    expires_unix_s: int | None
    """From then on it opens nothing. Calls that it opened before go on."""
    limits: KeyLimits

    @property
    def key_id(self) -> str:
        return FILE_KEY + self.token_id


class KeyRing:
    """The keys at one moment. Immutable."""

    def __init__(self, keys: tuple[Key, ...] = ()) -> None:
        self._keys = {key.token_id: key for key in keys}

    def __contains__(self, key_id: str) -> bool:
        return key_id.removeprefix(FILE_KEY) in self._keys

    def find(self, text: str, now_unix_s: float) -> Key | None:
        """The key that `text` is, unless it has expired. One comparison, whatever `text` is."""
        key = self._keys.get(id_in(KEY_PREFIX, text))
        if not is_token(text, None if key is None else key.digest) or key is None:
            return None
        expired = key.expires_unix_s is not None and key.expires_unix_s <= now_unix_s
        return None if expired else key


class KeyFile:
    """`HALFSEC_HOME/keys.json`. Methods block; any thread may call them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path.exists()

    def stamp(self) -> object:
        """Another one once the file is another; None where there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def read(self) -> tuple[Key, ...]:
        """In the order in which they were made; none where there is no file. Raises
        KeyFileError."""
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise KeyFileError(
                f"The keys in {self.path} can't be read: {error.strerror}."
            ) from None
        try:
            if len(text) > MAX_FILE_BYTES:
                raise ValueError("it is too large")
            return tuple(_keys_of(json.loads(text)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise KeyFileError(
                f"{self.path} is damaged ({type(error).__name__}: {error}). Put a copy back, or "
                "move it away and make new keys with halfsec keys add NAME."
            ) from None

    def add(
        self, name: str, limits: KeyLimits, now_unix_s: int, expires_unix_s: int | None = None
    ) -> str:
        """Make a key and give its text, which is not kept. Raises KeyFileError."""
        if not _NAME.fullmatch(name):
            raise KeyFileError(
                f"{name[:80]!r} can't be a key's name: letters, digits, and _ . @ - within it, at "
                "most 64."
            )
        token = new_token(KEY_PREFIX)
        key = Key(token.token_id, name, token.digest, now_unix_s, expires_unix_s, limits)
        with self._locked() as keys:
            if any(each.name == name for each in keys):
                raise KeyFileError(
                    f"There is a key {name!r} already. Choose another name, or first: "
                    f"halfsec keys revoke {name}"
                )
            if len(keys) >= MAX_KEYS:
                raise KeyFileError(f"There are {MAX_KEYS} keys already; revoke some.")
            self._write((*keys, key))
        return token.text

    def revoke(self, name: str) -> int:
        """Take a key away, by its name or its id. How many are left. Raises KeyFileError."""
        with self._locked() as keys:
            kept = tuple(key for key in keys if name not in (key.name, key.token_id))
            if len(kept) == len(keys):
                names = ", ".join(key.name for key in keys) or "none"
                raise KeyFileError(f"There is no key {name[:80]!r}. There are: {names}.")
            self._write(kept)
        return len(kept)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[tuple[Key, ...]]:
        """Keys under the lock, which no other process changes meanwhile."""
        try:
            make_private_folder(self.path.parent)
            lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise KeyFileError(
                f"{self.path.parent} can't be written: {error.strerror}. Make it writable, or set "
                "HALFSEC_HOME."
            ) from None
        try:
            if sys.platform != "win32":
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read()
        finally:
            os.close(lock)

    def _write(self, keys: tuple[Key, ...]) -> None:
        text = json.dumps({"version": _VERSION, "keys": [_json_of(key) for key in keys]}, indent=1)
        write_private(self.path, text.encode())


def write_private(path: Path, data: bytes) -> None:
    """Replace a file, whole or not at all, readable by its owner alone. Raises KeyFileError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()  # of a process that died with the same number
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise KeyFileError(f"{path} can't be written: {error.strerror}.") from None


def keys_path() -> Path:
    """Path of the file of keys."""
    return halfsec_home() / "keys.json"


def with_default(limits: KeyLimits, calls_per_key: int) -> KeyLimits:
    """The limits, where a key sets none for its calls, those of all keys."""
    if limits.max_calls is not None or not calls_per_key:
        return limits
    return replace(limits, max_calls=calls_per_key)


def _keys_of(document: Mapping[str, Any]) -> Iterator[Key]:
    """Raises ValueError, KeyError, TypeError."""
    if document["version"] != _VERSION:
        raise ValueError(f"version {document['version']!r} is of another halfsec")
    for entry in document["keys"]:
        digest = bytes.fromhex(entry["sha256"])
        if len(digest) != 32:
            raise ValueError("a hash has not 32 bytes")
        max_calls, expires = entry["max_calls"], entry["expires_unix_s"]
        limits = KeyLimits(
            None if max_calls is None else int(max_calls),
            tuple(str(name) for name in entry["agents"]),
            entry.get("dials") is True,  # older files know nothing of it
        )
        yield Key(
            str(entry["id"]),
            str(entry["name"]),
            digest,
            int(entry["created_unix_s"]),
            None if expires is None else int(expires),
            limits,
        )


def _json_of(key: Key) -> dict[str, Any]:
    return {
        "id": key.token_id,
        "name": key.name,
        "sha256": key.digest.hex(),
        "created_unix_s": key.created_unix_s,
        "expires_unix_s": key.expires_unix_s,
        "max_calls": key.limits.max_calls,
        "agents": list(key.limits.agents),
        "dials": key.limits.dials,
    }
