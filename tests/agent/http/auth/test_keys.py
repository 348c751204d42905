"""Keys: how they are made, kept, found and compared."""

import json
import os
import threading
from pathlib import Path

import pytest

from agent.http.auth import token_format
from agent.http.auth.keys import KEY_PREFIX, MAX_KEYS, KeyFile, KeyFileError, KeyRing
from agent.http.auth.principal import KeyLimits
from agent.http.auth.token_format import MAX_TOKEN_CHARS, new_token

NOW = 1_790_000_000


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "home" / "keys.json")


def ring(file: KeyFile) -> KeyRing:
    return KeyRing(file.read())


def test_key_is_recognized_and_stored_only_as_a_hash(file: KeyFile) -> None:
    limits = KeyLimits(max_calls=2, agents=("pirate",))
    text = file.add("ana", limits, NOW, NOW + 60)
    found = ring(file).find(text, NOW)
    assert found is not None
    assert (found.name, found.limits, found.expires_unix_s) == ("ana", limits, NOW + 60)
    assert found.key_id in ring(file)
    secret = text.removeprefix(KEY_PREFIX).partition("_")[2]
    stored = file.path.read_text()
    assert text not in stored
    assert secret not in stored
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert text.isascii()
    assert text.replace("-", "").replace("_", "").isalnum()  # fits into a subprotocol


def test_generated_keys_are_long_and_distinct(file: KeyFile) -> None:
    texts = {new_token("hs_").text for _ in range(1000)}
    assert len(texts) == 1000
    assert min(len(text) for text in texts) >= 55  # 256 bits of secret
    assert all(len(text) <= MAX_TOKEN_CHARS for text in texts)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text[:-1],
        lambda text: text + "A",
        lambda text: text + "A" * 10_000,
        lambda text: text.upper(),
        lambda text: text[:15],
        lambda text: "hs_" + "0" * 12 + text[15:],
        lambda text: "hs_",
        lambda text: "\ud800" + text,
        lambda text: text.replace("_", "\x00"),
    ],
)
def test_wrong_key_still_costs_one_comparison(
    file: KeyFile, monkeypatch: pytest.MonkeyPatch, change: object
) -> None:
    text = file.add("ana", KeyLimits(), NOW)
    for name in ("ben", "cem"):
        file.add(name, KeyLimits(), NOW)
    keys = ring(file)
    compared: list[tuple[int, int]] = []

    def counting(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(token_format, "compare_digest", counting)
    assert keys.find(change(text), NOW) is None  # type: ignore[operator]
    assert compared == [(32, 32)]
    assert keys.find(text, NOW) is not None
    assert compared == [(32, 32)] * 2


def test_expired_key_is_refused(file: KeyFile) -> None:
    text = file.add("ana", KeyLimits(), NOW, NOW + 60)
    assert ring(file).find(text, NOW + 59) is not None
    assert ring(file).find(text, NOW + 60) is None


def test_revoked_key_is_removed_from_the_file(file: KeyFile) -> None:
    assert not file.exists()
    text = file.add("ana", KeyLimits(), NOW)
    (key,) = file.read()
    other = file.add("ben", KeyLimits(), NOW)
    assert file.revoke("ana") == 1
    assert ring(file).find(text, NOW) is None
    assert key.key_id not in ring(file)
    assert ring(file).find(other, NOW) is not None
    assert file.revoke(file.read()[0].token_id) == 0
    assert file.exists()
    with pytest.raises(KeyFileError, match="There are: none"):
        file.revoke("ana")


def test_key_names_are_unique_and_validated(file: KeyFile) -> None:
    file.add("ana@example.org", KeyLimits(), NOW)
    with pytest.raises(KeyFileError, match=r"There is a key 'ana@example\.org' already"):
        file.add("ana@example.org", KeyLimits(), NOW)
    for name in ("", "a b", "-x", "x" * 65, "a\nb", "../x"):
        with pytest.raises(KeyFileError, match="can't be a key's name"):
            file.add(name, KeyLimits(), NOW)
    assert len(file.read()) == 1


def test_concurrent_writers_lose_no_key(file: KeyFile) -> None:
    barrier = threading.Barrier(8)

    def add(number: int) -> None:
        barrier.wait()
        file.add(f"key{number}", KeyLimits(), NOW)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in file.read()} == {f"key{number}" for number in range(8)}
    assert [path.name for path in file.path.parent.iterdir() if path.name.startswith(".")] == []


def test_number_of_keys_is_limited(file: KeyFile) -> None:
    file.add("first", KeyLimits(), NOW)
    document = json.loads(file.path.read_text())
    (entry,) = document["keys"]
    document["keys"] = [{**entry, "id": f"{n:012x}", "name": f"k{n}"} for n in range(MAX_KEYS)]
    file.path.write_text(json.dumps(document))
    with pytest.raises(KeyFileError, match="revoke some"):
        file.add("last", KeyLimits(), NOW)


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"null", b'{"version": 1}', b'{"version": 2, "keys": []}', b"\xff\xfe",
        b'{"version": 1, "keys": [{}]}', b'{"version": 1, "keys": [1]}', b"[" * 100_000,
        b'{"version": 1, "keys": [{"id": "a", "name": "b", "sha256": "ff", "created_unix_s": 1,'
        b' "expires_unix_s": null, "max_calls": null, "agents": []}]}',
    ],
)  # fmt: skip
def test_damaged_key_file_is_named_and_kept(file: KeyFile, damage: bytes) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(damage)
    with pytest.raises(KeyFileError, match="is damaged") as caught:
        file.read()
    assert str(file.path) in caught.value.message
    with pytest.raises(KeyFileError, match="is damaged"):
        file.add("ana", KeyLimits(), NOW)
    assert file.path.read_bytes() == damage


def test_unwritable_key_folder(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(KeyFileError, match="HALFSEC_HOME"):
        KeyFile(tmp_path / "home" / "keys.json").add("ana", KeyLimits(), NOW)


def test_stale_temporary_file_of_a_dead_process_is_harmless(file: KeyFile) -> None:
    file.add("ana", KeyLimits(), NOW)
    file.path.with_name(f".keys.json.{os.getpid()}").write_text("half")
    file.add("ben", KeyLimits(), NOW)
    assert len(file.read()) == 2
