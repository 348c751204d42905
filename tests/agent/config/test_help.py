"""The settings explained: nothing left out, and the file that is printed is one that works."""

import re
from dataclasses import fields
from itertools import pairwise

import pytest

from agent.__main__ import main
from agent.config.help import settings_file
from agent.config.layers import load_config
from agent.config.presets import PRESETS
from agent.config.schema import SECTIONS


@pytest.mark.parametrize("preset", PRESETS)
def test_it_changes_nothing_commented_out_or_not(preset: str) -> None:
    config = load_config({"agent.preset": preset})
    text = settings_file(config)
    commented = load_config({"agent.preset": preset}, file_text=text)
    assert commented.fingerprint() == config.fingerprint()
    assert all(not line or line[0] in "#[" for line in text.splitlines())
    valued = re.sub(r"(?m)^# Not set\. An example:\n.*\n", "", text)
    assert load_config(file_text=uncommented(valued)).fingerprint() == config.fingerprint()


def uncommented(text: str) -> str:
    return re.sub(r"(?m)^# (\w+ = |  \{|\])", r"\1", text)


def test_the_examples_of_settings_that_are_not_set_are_taken() -> None:
    config = load_config(file_text=uncommented(settings_file(load_config())))
    assert (config.agent.record_dir, config.agent.trace_dir) == ("recordings", "traces")
    default = config.agents["default"]
    assert (default.language, default.pace_ms, default.budget_ms) == ("de", 700, 800)


def test_every_setting_is_there_with_its_words_and_bounds() -> None:
    text = settings_file(load_config())
    for section, kind in SECTIONS.items():
        for field in fields(kind):
            assert re.search(rf"(?ms)^\[{section}\].*^# {field.name} = ", text)
    assert "# Port to listen on; 0: any free one.\n# From 0 to 65535.\n# port = 8080\n" in text
    listed = "auto, embedded, embedded-0.5b, embedded-1.5b, cpu, remote, gpu-4b, gpu-8b, gpu-70b"
    assert f"# One of {listed}.\n# preset = " in text
    assert "# One of int8, int4, float32, bfloat16, fp8.\n# dtype = " in text
    assert 'A language code like "en".' in text
    assert '# Not set. An example:\n# trace_dir = "traces"\n' in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--preset", "cpu"]) == 0
    assert PRESETS["cpu"]["asr"]["model"] in capsys.readouterr().out


def test_no_setting_is_without_words() -> None:
    lines = settings_file(load_config()).splitlines()
    bare = [
        line
        for before, line in pairwise(lines)
        if re.match(r"# \w+ = ", line) and not before.startswith("# ")
    ]
    assert bare == []
