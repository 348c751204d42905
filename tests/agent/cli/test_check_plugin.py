"""`halfsec check-plugin`: lists, checks, and names that mean nothing."""

import pytest

from agent.__main__ import main
from tests.support.plugins import Install

pytest_plugins = ["tests.support.plugin_fixtures"]

ECHO = """
    class Echo:
        def __init__(self, argument, options): ...

        async def reply(self, request):
            yield request.messages[-1]["content"]

        async def close(self): ...
"""
HUM = """
    from tests.tts.test_voice import HummingEngine

    class Hum(HummingEngine):
        def __init__(self, argument, options):
            super().__init__()
            self.rate_hz = int(argument or 16_000)
"""


def test_one_that_keeps_its_contract(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("mine", "halfsec.chats", "mine = mine_chat:Echo", ECHO)
    install("mine", "halfsec.voices", "mine = mine_voice:Hum", HUM)
    assert main(["check-plugin", "mine:"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mine: as a voice:\n  ok    has a name and a rate\n")
    assert "\nmine: as a chat:\n  ok    replies in text\n" in out
    assert out.count("  ok ") == 16
    assert main(["check-plugin", "mine:", "--kind", "chat"]) == 0
    assert capsys.readouterr().out.startswith("mine: as a chat:\n")


def test_one_that_breaks_its_contract(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    broken = ECHO.replace("async def reply", "def reply")
    install("mine", "halfsec.chats", "mine = mine_chat:Echo", broken)
    assert main(["check-plugin", "mine:"]) == 1
    out = capsys.readouterr().out
    assert (
        "  WRONG replies in text\n        -> TypeError: reply() returned generator, and must be an "
        "async generator: `async def` with `yield`\n"
    ) in out
    assert "  ok    can be closed\n" in out
    assert out.endswith("6 of the checks failed; what each means: docs/how-to/engines.md\n")


def test_one_that_ends_the_process(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    ends = ECHO.replace("yield request", "raise SystemExit(3)\n            yield request")
    install("mine", "halfsec.chats", "mine = mine_chat:Echo", ends)
    assert main(["check-plugin", "mine:"]) == 1
    out = capsys.readouterr().out
    assert "  WRONG replies in text\n        -> RuntimeError: SystemExit: 3\n" in out
    assert "  ok    can be closed\n" in out


def test_one_that_cannot_be_loaded(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("mine", "halfsec.voices", "mine = mine_voice:Hum", HUM)
    assert main(["check-plugin", "mine:3"]) == 2
    assert "halfsec: the voice mine:3 has rate_hz = 3" in capsys.readouterr().err
    install("other", "halfsec.voices", "raises = other_voice:Hum", "import no_such_runtime")
    assert main(["check-plugin", "raises:"]) == 2
    assert "No module named 'no_such_runtime'" in capsys.readouterr().err


def test_names_that_mean_nothing(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-plugin", "mine:x"]) == 2
    assert "No installed package brings a plug-in 'mine'" in capsys.readouterr().err
    assert main(["check-plugin", "hibari"]) == 2
    assert "'hibari' is not the name of a plug-in" in capsys.readouterr().err


def test_without_a_name_it_lists_what_is_installed(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("mine", "halfsec.voices", "mine = mine_voice:Hum", HUM)
    install("mine", "halfsec.voices", "openai = mine_voice:Hum", HUM)
    assert main(["check-plugin"]) == 0
    out = capsys.readouterr().out
    assert "halfsec.recognizers: none\n" in out
    assert "tts.voice = \"mine:...\"   the voice plug-in 'mine' (mine_voice:Hum of mine 1.0)" in out
    assert "(this name can't be used: see the guide)" in out


@pytest.mark.models
def test_a_voice_of_our_own_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-plugin", "hibari", "--kind", "voice"]) == 0
    assert capsys.readouterr().out.count("  ok ") == 9
