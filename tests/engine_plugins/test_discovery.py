"""Plug-ins of installed packages: found by name, and what is said of those that can't be used."""

import re
from pathlib import Path

import pytest

import asr
import llm_engine
import tts
from engine_plugins.discovery import (
    PluginError,
    PluginKind,
    find_plugin,
    installed_plugins,
    load_plugin,
)
from engine_plugins.reference import PluginReference
from tests.support.plugins import Install

pytest_plugins = ["tests.support.plugin_fixtures"]

VOICES = PluginKind.VOICE.group

HUM = """
    class Hum:
        rate_hz = 16_000

        def __init__(self, argument, options):
            self.made_of = argument, options

        def speak(self, line, speed=1.0): ...
"""

NOT_CALLABLE = HUM.replace("def speak", "speak = 3\n\n        def say")


def load(name: str = "hum") -> object:
    members = {"rate_hz": "attribute", "speak": "method"}
    return load_plugin(PluginKind.VOICE, PluginReference(name, "low"), "options", members)  # type: ignore[arg-type]


def problem(name: str = "hum") -> str:
    with pytest.raises(PluginError) as caught:
        load(name)
    return str(caught.value)


def test_an_entry_point_makes_the_engine(install: Install) -> None:
    install("mine", VOICES, "hum = mine_voice:Hum", HUM)
    engine = load()
    assert vars(engine) == {"made_of": ("low", "options")}
    assert [plugin.name for plugin in installed_plugins(PluginKind.VOICE)] == ["hum"]
    assert not installed_plugins(PluginKind.CHAT)


def test_a_plugin_that_is_not_installed(install: Install) -> None:
    assert "installed are: none" in problem()
    install("mine", VOICES, "hum = mine_voice:Hum", HUM)
    text = problem("hmu")
    assert text.startswith(
        "There is no voice plug-in 'hmu', which tts.voice = \"hmu:low\" asks for; installed are: "
        "hum. "
    )
    assert "halfsec.voices" in text
    assert text.endswith("write ./hmu:low")


def test_two_plugins_of_one_name(install: Install) -> None:
    install("mine", VOICES, "hum = mine_voice:Hum", HUM)
    install("yours", VOICES, "hum = your_voice:Hum", HUM)
    assert re.fullmatch(
        r"(mine and yours|yours and mine) both bring a voice plug-in called 'hum', and tts.voice "
        r"can mean only one. Uninstall the other: pip uninstall (mine|yours)",
        problem(),
    )


@pytest.mark.parametrize(
    ("entry", "source", "said"),
    [
        (
            "m:Hum",
            "import no_such_runtime",
            "No module named 'no_such_runtime'. Repair the",
        ),
        ("m:Hum", "raise RuntimeError('no\\nGPU')", "can't be imported: RuntimeError: no GPU. Rep"),
        ("m:Hum", "raise SystemExit('no licence')", "can't be imported: SystemExit: no licence"),
        ("m:Hmu", HUM, "can't be imported: AttributeError: module 'm' has no attribute 'Hmu'"),
        ("m:Hum", "Hum = 3", "is a int, not a function: its entry point must name one"),
        ("m:Hum", "def Hum(): ...", "two arguments, see docs/how-to/engines.md"),
        ("m:Hum", "def Hum(a, b): raise OSError('no file')", "can't load 'low': OSError: no file."),
        ("m:Hum", "def Hum(a, b): return 3", "makes a int, which lacks `rate_hz` and `speak()`"),
        ("m:Hum", HUM.replace("rate_hz", "hz"), "makes a Hum, which lacks `rate_hz`: see"),
        (
            "m:Hum",
            NOT_CALLABLE,
            "which lacks `speak()`: see",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used(install: Install, entry: str, source: str, said: str) -> None:
    install("mine", VOICES, f"hum = {entry}", source)
    text = problem()
    assert said in text
    assert text.startswith(f"The voice plug-in 'hum' ({entry} of mine 1.0) ")


def test_nothing_is_imported_to_find_it(install: Install) -> None:
    install("mine", VOICES, "hum = mine_voice:Hum", "raise RuntimeError")
    plugin = find_plugin(PluginKind.VOICE, PluginReference("hum", "low"))
    assert str(plugin) == "the voice plug-in 'hum' (mine_voice:Hum of mine 1.0)"


def test_each_stage_raises_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(asr.ModelError, match=r"no recognizer plug-in 'none'.*asr\.model"):
        asr.load_recognizer("none:x")
    with pytest.raises(tts.VoiceError, match=r"no voice plug-in 'none'.*tts\.voice"):
        tts.load_voice("none:x", tmp_path)
    with pytest.raises(llm_engine.ModelError, match=r"no chat plug-in 'none'.*llm_engine\.model"):
        llm_engine.load_chat("none:x")
