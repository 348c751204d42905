"""Names of the settings that mean a plug-in, and those that mean something else."""

import pytest

from engine_plugins.discovery import usable_name
from engine_plugins.reference import PluginReference, is_plugin, parse_plugin


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("kokoro:af_heart", "af_heart"),
        ("echo:", ""),
        ("My_own-2.engine:C:\\models\\x", "C:\\models\\x"),
        ("llama:~/models/x.gguf", "~/models/x.gguf"),
        ("http://box/v1", "//box/v1"),
    ],
)
def test_a_bare_name_before_a_colon_is_a_plugin(name: str, argument: str) -> None:
    assert parse_plugin(name) == PluginReference(name.partition(":")[0], argument)
    assert str(parse_plugin(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "hibari",
        "whisper-tiny.en",
        "owner/name@refs/pr:1",
        "openai:http://gpu-box:8000/v1#qwen3-8b",
        "C:\\models\\joe.onnx",
        "/models/a:b",
        "./a:b",
        "~/a:b",
        "models/a:b",
        "two words:x",
    ],
)
def test_every_other_name_is_none(name: str) -> None:
    assert not is_plugin(name)


def test_names_that_no_setting_can_mean() -> None:
    assert usable_name("kokoro")
    assert not any(map(usable_name, ("openai", "x", "with blank", "a/b", "")))
