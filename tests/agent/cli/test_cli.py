"""The `halfsec` command as a user meets it: in a process of its own."""

import hashlib
import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.__main__ import main
from tests.latency_budget.test_thresholds import run, store_of
from tests.support.fakes.hub import COMMIT, FakeHub, serving

WEIGHTS = bytes(range(256)) * 90_000
"""23 MB: the hub's client keeps what it has got of a broken download in steps of 10 MB."""


def halfsec(
    *arguments: str, home: Path, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HALFSEC_")}
    kept.pop("PORT", None)
    return subprocess.run(
        [sys.executable, "-m", "agent", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env={
            **kept,
            "HALFSEC_HOME": str(home),
            "HALFSEC_AGENT__PRESET": "embedded",
            "PYTHONPATH": str(Path.cwd()),
            **env,
        },
        timeout=100,
        check=False,
    )


def help_of(*command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says of itself, in this process: a process of its own has a second of
    imports."""
    try:
        status: object = main([*command, "--help"])
    except SystemExit as end:
        status = end.code or 0
    assert status == 0
    return capsys.readouterr().out


def test_help_and_version(tmp_path: Path) -> None:
    helped = halfsec("--help", home=tmp_path)
    assert helped.returncode == 0
    for command in ("serve", "models", "keys", "doctor", "report", "examples:"):
        assert command in helped.stdout
    assert halfsec("--version", home=tmp_path).stdout.startswith("halfsec 0.")
    assert halfsec(home=tmp_path).stdout == helped.stdout


@pytest.mark.parametrize(
    "command",
    [
        *("serve", "talk", "call", "bench", "models", "keys", "doctor", "settings", "replay"),
        *("report", "licences"),
    ],
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage:" in help_of(command, capsys=capsys)


@pytest.mark.parametrize("name", ["voice", "turns", "asr", "tts", "llm"])
def test_every_bench_says_what_its_options_are_for(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    helped = help_of("bench", name, capsys=capsys)
    assert helped.startswith(f"usage: halfsec bench {name} ")
    options = helped[helped.index("options:") :]
    assert re.findall(r"(?m)^  (--\S+)(?: \S+)?\n(?!   )", options) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["doctor", "--port", "x"], "agent.port must be a whole number"),
        (["doctor", "--set", "nonsense"], "--set takes SECTION.KEY=VALUE"),
        (["doctor", "--set", "asr.modle=x"], "Did you mean asr.model?"),
        (["doctor", "--config", "none.toml"], "Can't read the settings file none.toml"),
        (["serve", "--preset", "big"], "agent.preset must be one of"),
        (["models", "fetch", "nothing"], "There is no model 'nothing'"),
        (["models", "verify", "nothing"], "no model called 'nothing'"),
        (["models", "fetch", "--models-from", "none"], "not a directory"),
        (["models", "fetch", "--set", "tts.voice=nobody"], "There is no model 'nobody'"),
        (["report", "none.jsonl"], "none.jsonl"),
        (["report"], "turns.sqlite: no turn was kept yet; a server keeps them there"),
        (["talk", "none.wav"], "halfsec: "),
        (["serve", "--host", "0.0.0.0"], "halfsec keys add NAME"),
        (["serve", "--set", "access.tls_cert=none.pem"], "access.tls_key is missing"),
        (["keys", "revoke", "nobody"], "There is no key 'nobody'. There are: none."),
        (["keys", "add", "a b"], "'a b' can't be a key's name"),
        (["keys", "add", "ana", "--expires", "soon"], "--expires takes a time like 30m"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = halfsec(*arguments, home=tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_report_is_of_the_service_s_own_turns(tmp_path: Path) -> None:
    home = tmp_path / "100%(s)"
    store = store_of(home / "turns.sqlite", run(450, 40, 3, 1))
    done = halfsec("report", "--html", "report.html", home=home, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 turns, 3 answered" in done.stdout
    assert str(store) in (tmp_path / "report.html").read_text(encoding="utf-8")
    asked = halfsec("report", "--help", home=home)
    assert "default: the store of the settings" in " ".join(asked.stdout.split())
    (tmp_path / "halfsec.toml").write_text(
        '[latency_budget]\nstore = "postgresql://ana:s3cret@127.0.0.1:1/turns"'
    )
    gone = halfsec("report", "--config", "../halfsec.toml", home=home, cwd=home)
    assert gone.returncode == 2
    assert gone.stderr.startswith("postgresql://***@127.0.0.1:1/turns: ")
    assert len(gone.stderr.splitlines()) == 1
    assert "s3cret" not in gone.stderr


def test_an_unknown_command(tmp_path: Path) -> None:
    done = halfsec("frobnicate", home=tmp_path)
    assert done.returncode == 2
    assert "invalid choice: 'frobnicate'" in done.stderr


def test_an_unforeseen_failure_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by\n zero")

    monkeypatch.setattr("agent.cli.models.main", fail)
    assert main(["models"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("halfsec: ZeroDivisionError: division by zero")
    assert len(shown.splitlines()) == 1


def test_an_interrupt_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agent.cli.models.main", interrupt)
    assert main(["models"]) == 2
    assert capsys.readouterr().err == "halfsec: stopped\n"


def test_a_reader_that_went_away_is_no_error_message(tmp_path: Path) -> None:
    command = f"{sys.executable} -m agent models | true"
    env = {**os.environ, "HALFSEC_HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=env, check=False
    )
    assert done.stderr == ""


def test_the_list_of_models(tmp_path: Path) -> None:
    done = halfsec("models", home=tmp_path)
    assert done.returncode == 0
    for words in ("whisper-tiny.en", "asr", "78 MB", "missing", "MIT", "GPL-3.0"):
        assert words in done.stdout


def test_doctor_says_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    done = halfsec("doctor", "--port", "0", home=tmp_path)
    assert done.returncode == 0
    names = "silero-vad whisper-tiny.en smart-turn smollm2-135m-instruct"
    command = f"-> halfsec serve fetches them first, or: halfsec models fetch {names}"
    assert [line.strip() for line in done.stdout.splitlines() if "fetch" in line] == [command]
    assert "note  silero-vad" in done.stdout
    done = halfsec("doctor", "--port", "0", "--set", "asr.model=whisper", home=tmp_path)
    assert done.returncode == 1
    assert "halfsec serve would fail: silero-vad, whisper, smart-turn" in done.stdout
    assert "'embedded'  (environment variable HALFSEC_AGENT__PRESET)" in done.stdout


def test_doctor_misses_piper_only_where_a_piper_voice_is_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    version = importlib.metadata.version

    def without_piper(name: str) -> str:
        if name == "piper-tts":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_piper)
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    main(["doctor", "--port", "0"])
    assert "note  piper-tts" in capsys.readouterr().out
    main(["doctor", "--port", "0", "--set", "tts.voice=piper-joe"])
    assert "WRONG piper-tts" in capsys.readouterr().out


def test_doctor_misses_torch_only_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    version = importlib.metadata.version

    def without_torch(name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_torch)
    monkeypatch.setattr("llm_engine.torch_extra.find_spec", lambda name: None)
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    main(["doctor", "--port", "0"])
    assert "note  torch" in capsys.readouterr().out
    main(["doctor", "--port", "0", "--set", "llm_engine.dtype=int4"])
    assert "note  torch" in capsys.readouterr().out
    for setting, extra in (
        ("llm_engine.dtype=float32", "torch"),
        ("llm_engine.dtype=int4 llm_engine.calibration=calls.txt", "torch"),
        ("llm_engine.draft_heads=heads", "torch"),
        ("llm_engine.dtype=fp8", "cuda"),
    ):
        given = [word for each in setting.split() for word in ("--set", each)]
        assert main(["doctor", "--port", "0", *given]) == 1
        out = capsys.readouterr().out
        assert "WRONG torch" in out
        assert f"needs torch, which is not installed: pip install 'halfsec[{extra}]'" in out
        assert main(["serve", "--port", "0", *given]) == 2
        assert f"pip install 'halfsec[{extra}]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("endpoint", "variable", "line"),
    [
        ("", "OTEL_X=", "note traces none: latency_budget.otlp_endpoint is empty"),
        (
            "",
            "OTEL_EXPORTER_OTLP_ENDPOINT=http://h:4318",
            "-> OTEL_EXPORTER_OTLP_ENDPOINT does not turn them on; that setting does",
        ),
        ("http://h:4318", "OTEL_X=", "ok traces to http://h:4318 (OpenTelemetry "),
        (
            "https://h/otlp",
            "OTEL_SDK_DISABLED=True",
            "note traces none: OTEL_SDK_DISABLED is true",
        ),
    ],
)
def test_doctor_says_where_traces_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, variable: str, line: str
) -> None:
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value)
    setting = f"latency_budget.otlp_endpoint={endpoint}"
    done = halfsec("doctor", "--port", "0", "--set", setting, home=tmp_path)
    lines = [" ".join(each.split()) for each in done.stdout.splitlines()]
    assert [each for each in lines if each.startswith(line)]


@pytest.mark.parametrize("password", [None, "", "s3cret"])
def test_doctor_misses_the_password_of_the_turn_server(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    password: str | None,
) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.delenv("RELAY_PASSWORD", raising=False)
    if password is not None:
        monkeypatch.setenv("RELAY_PASSWORD", password)
    arguments = ["doctor", "--port", "0", "--set", "webrtc.turn_password_env=RELAY_PASSWORD"]
    assert main(arguments) == 0
    assert "TURN server" not in capsys.readouterr().out
    assert main([*arguments, "--set", "webrtc.turn_url=turn:relay.test:3478"]) == 0
    out = capsys.readouterr().out
    (line,) = re.findall(r"TURN server\n +(\w+) +webrtc.turn_url +(.*)", out)
    if password:
        assert line == ("ok", "turn:relay.test:3478 (RELAY_PASSWORD is set)")
    else:
        assert line == ("note", "turn:relay.test:3478 (RELAY_PASSWORD is not set)")
    assert ("-> set RELAY_PASSWORD to the password" in out) == (not password)
    assert "s3cret" not in out


def test_doctor_calls_gpus_experimental(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A GPU that would do; none is here."""
    monkeypatch.setattr("agent.cli.doctor.gpu_problem", lambda config: None)
    monkeypatch.setattr("llm_engine.cuda.device.require_device", lambda: "an H100")
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    main(["doctor", "--port", "0", "--set", "llm_engine.dtype=fp8"])
    (line,) = re.findall(r"note  gpu .*an H100\n.*-> (.*)", capsys.readouterr().out)
    assert line.startswith("experimental: ")


def test_doctor_sees_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = halfsec("doctor", home=tmp_path, PORT=str(port))
    assert done.returncode == 1
    assert f"Can't listen on 127.0.0.1:{port}: something else does." in done.stdout
    assert "(environment variable PORT)" in done.stdout


@pytest.mark.models
def test_doctor_is_content_where_all_is_there() -> None:
    home = Path(os.environ.get("HALFSEC_HOME", "~/.halfsec")).expanduser()
    if not (home / "models").exists():
        pytest.skip("the models are missing: run `halfsec models fetch`")
    done = halfsec("doctor", "--port", "0", home=home)
    assert done.returncode == 0, done.stdout
    assert "All is ready" in done.stdout


def write_list(home: Path, content: bytes) -> None:
    home.mkdir()
    digest = hashlib.sha256(content).hexdigest()
    (home / "models.toml").write_text(
        '[models.mine]\nstage = "llm"\nlicence = "MIT"\nhub = "owner/name"\nentry = "w.gguf"\n'
        f'[models.mine.files."w.gguf"]\nsize = {len(content)}\nsha256 = "{digest}"\n'
    )


def fetch_from(hub: FakeHub, name: str, home: Path) -> subprocess.CompletedProcess[str]:
    return halfsec(
        "models", "fetch", name, home=home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_TELEMETRY="1", HF_HOME=str(home / "hf"), NO_PROXY="127.0.0.1",
    )  # fmt: skip


def test_a_listed_model_from_the_hub_goes_on_after_a_break(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_list(home, WEIGHTS)
    with serving(FakeHub({"w.gguf": WEIGHTS}, break_after=11_000_000)) as hub:
        done = fetch_from(hub, "mine", home)
    assert done.returncode == 0, done.stderr
    assert (home / "models" / "mine" / "w.gguf").read_bytes() == WEIGHTS
    assert hub.ranges == [None, "bytes=10485760-"], "the second request asks for the rest only"
    assert halfsec("models", "verify", "mine", home=home).returncode == 0


def test_a_listed_model_from_the_hub_with_a_wrong_hash(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_list(home, WEIGHTS)
    with serving(FakeHub({"w.gguf": b"other"})) as hub:
        done = fetch_from(hub, "mine", home)
    assert done.returncode == 2
    assert hashlib.sha256(b"other").hexdigest() in done.stderr
    assert hashlib.sha256(WEIGHTS).hexdigest() in done.stderr
    assert not (home / "models" / "mine" / "w.gguf").exists()


def test_a_repository_of_the_hub_by_its_id(tmp_path: Path) -> None:
    files = {"config.json": json.dumps({"a": 1}).encode(), "model.safetensors": WEIGHTS}
    with serving(FakeHub({**files, "pytorch_model.h5": b"x"})) as hub:
        done = fetch_from(hub, "owner/name", tmp_path)
        assert done.returncode == 0, done.stderr
        again = fetch_from(hub, "owner/name", tmp_path)
    directory = tmp_path / "models" / "hub" / "owner--name"
    assert {name: (directory / name).read_bytes() for name in files} == files
    assert not (directory / "pytorch_model.h5").exists()
    assert "All models are present" in again.stderr


def test_what_came_from_the_hub_is_compared_with_the_first_fetch(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    directory = tmp_path / "models" / "hub" / "owner--name"
    weights = directory / "model.safetensors"
    with serving(FakeHub(files)) as hub:
        assert fetch_from(hub, "owner/name", tmp_path).returncode == 0
        verified = halfsec("models", "verify", home=tmp_path)
        assert f"owner--name (revision {COMMIT}): as it should be" in verified.stdout
        damaged = bytearray(WEIGHTS)
        damaged[7] ^= 1
        weights.write_bytes(damaged)
        assert "owner--name" in halfsec("models", "verify", home=tmp_path).stdout
        weights.write_bytes(WEIGHTS[:-1])
        again = fetch_from(hub, "owner/name", tmp_path)
        assert again.returncode == 0, again.stderr
        assert f"has {len(WEIGHTS) - 1} bytes, not {len(WEIGHTS)}: it is damaged" in again.stderr
        assert weights.read_bytes() == WEIGHTS
        weights.unlink()
        hub.files["model.safetensors"] = b"other"
        other = fetch_from(hub, "owner/name", tmp_path)
    assert other.returncode == 2
    assert f"at revision {COMMIT} is not what was fetched first" in other.stderr


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    with serving(FakeHub({})) as hub:
        pass
    done = fetch_from(hub, "owner/name", tmp_path)
    assert done.returncode == 2
    assert "Can't get owner/name from the Hugging Face hub" in done.stderr
    assert "Traceback" not in done.stderr
