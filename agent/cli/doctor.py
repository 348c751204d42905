"""`halfsec doctor`: check of the machine, the packages, the models and the settings."""

import asyncio
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from agent.config.home import halfsec_home
from agent.config.local_urls import is_loopback
from agent.config.remote_models import RemoteModel
from agent.config.schema import Config, remote_models
from agent.config.state_address import shown_state_store
from agent.config.tools import MCP_PREFIX, PHONE_PREFIX
from agent.errors import ConfigError, HalfsecError
from agent.http.auth.key_needed import needs_key
from agent.http.auth.keys import KeyFile, keys_path
from agent.http.auth.tls import certificate_of, server_context
from agent.server.startup_checks.access import check_access
from agent.server.startup_checks.port import halfsec_runs, listening_problem
from agent.server.startup_checks.preflight import (
    INSTALL_OTEL,
    OTEL_PACKAGES,
    check_store,
    check_webhooks,
    fetch_command,
    gpu_problem,
    missing_exports,
    otel_is_disabled,
    plugins,
    shortfalls,
    torch_problem,
)
from agent.server.startup_checks.telephony import telephony_problems
from agent.server.startup_checks.tools import check_client_tools, server_problems
from agent.stages.model_store.catalogue import (
    ModelStore,
    ModelStoreError,
    needed_models,
    turn_store_path,
)
from agent.telephony.outbound.twilio_account import TwilioAccount
from agent.tools.event_loop import ToolLoop
from agent.tools.files import load_tools
from engine_plugins.discovery import PluginError
from engine_plugins.reference import is_plugin
from languages import PROFILES
from latency_budget.account.clock import SystemClock
from latency_budget.host import available_mb, memory_mb, missing_instructions, usable_cores
from latency_budget.storage.database import StoreError
from latency_budget.storage.store import MAX_WAITING

_FOR_LANGUAGES: Final = ("num2words", "py-nanotts")
_PACKAGES: Final = (
    "halfsec", "torch", "ctranslate2", "faster-whisper", "onnxruntime", "tokenizers", "hibari-tts",
    "piper-tts", "starlette", "uvicorn", "uvloop", "websockets", "numpy", "soxr", "pydantic", "mcp",
    "psycopg", "redis", "num2words", "py-nanotts",
)  # fmt: skip
_OPTIONAL: Final = frozenset(
    {"torch", "piper-tts", "uvloop", "mcp", "psycopg", "redis", *_FOR_LANGUAGES}
)
_OTHER_LANGUAGES: Final = PROFILES.keys() - {"en"}
_ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_RUNS: Final = "halfsec already runs here"
_SHOWN_CHARS: Final = 90
_ROOM_BYTES: Final = 3 << 30
"""Free space below which a warning is due: the half-billion model, its converted weights and the
rest need it while they are fetched."""

Verdict = Literal["", "ok", "note", "WRONG"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    value: str
    verdict: Verdict = ""
    remedy: str = ""
    """Remedy; empty where none is needed."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report."""

    title: str
    findings: tuple[Finding, ...]


def main(config: Config) -> int:
    """Print the report. Returns 1 if `halfsec serve` would fail."""
    findings = show(examine(config))
    wrong = [finding.name for finding in findings if finding.verdict == "WRONG"]
    if wrong:
        print(f"halfsec serve would fail: {', '.join(wrong)} (see above).")
        return 1
    runs = any(finding.value == _RUNS for finding in findings)
    print("All is ready, and halfsec runs." if runs else "All is ready: halfsec serve")
    return 0


def show(sections: Iterable[Section]) -> list[Finding]:
    """Print a report section by section. Returns all findings."""
    findings: list[Finding] = []
    for section in sections:
        print(f"\n{section.title}")
        for finding in section.findings:
            print(f"  {finding.verdict:<5} {finding.name:<28} {finding.value}")
            if finding.remedy:
                print(f"  {'':<5} {'':<28} -> {finding.remedy}")
        findings += section.findings
    print()
    return findings


def examine(config: Config) -> Iterator[Section]:
    """The report, section by section. Loads no model, and imports no heavy package unless a GPU is
    asked for."""
    yield Section("Machine", tuple(_machine()))
    yield Section("Packages", tuple(_packages(config)))
    yield Section("GPU", (_gpu(config),))
    yield Section("Exports", (_traces(config),))
    yield Section("State", tuple(_state()))
    yield Section("Turn store", (_turn_store(config),))
    yield Section("State of calls", (_state_store(config),))
    yield Section("Access", tuple(_access(config)))
    if config.webrtc.turn_url:
        yield Section("TURN server", (_turn_server(config),))
    yield Section("Models", tuple(_models(config)))
    if config.llm_engine.remote is not None:
        yield Section("Model server", (_model_server(config),))
    if config.asr.remote is not None:
        yield Section("Recognition server", (_recognition_server(config),))
    if remote_models(config, "tts"):
        yield Section("Speech server", tuple(_speech_servers(config)))
    if problems := tuple(_telephony(config)):
        yield Section("Telephony", problems)
    if config.webhooks:
        yield Section("Webhooks", (_webhooks(config),))
    yield Section("Tools", tuple(_tools(config)))
    yield Section("Port", (_port(config),))
    yield Section(f"Settings (fingerprint {config.fingerprint()})", tuple(_settings(config)))


def _machine() -> Iterator[Finding]:
    fits = sys.version_info >= (3, 11)
    remedy = "" if fits else "halfsec needs Python 3.11 or newer"
    yield Finding("python", platform.python_version(), "ok" if fits else "WRONG", remedy)
    yield Finding("platform", platform.platform())
    yield Finding("cores", f"{usable_cores():g}")
    lack = missing_instructions()
    slow = "everything works, and more slowly" if lack else ""
    yield Finding("instructions", lack or "all that are used", "note" if lack else "ok", slow)
    memory = memory_mb() / 1024
    if memory:
        few = memory < 3
        left = available_mb()
        yield Finding(
            "memory",
            f"{memory:.1f} GiB" + (f", {left / 1024:.1f} of them left" if left is not None else ""),
            "note" if few else "ok",
            "the embedded models need about 2 GiB" if few else "",
        )


def _packages(config: Config) -> Iterator[Finding]:
    voices = [voice for voice in config.local_voices if not is_plugin(voice)]
    needs_piper = any(not voice.startswith(("hibari", "pico-")) for voice in voices)
    for name in _PACKAGES:
        try:
            yield Finding(name, importlib.metadata.version(name), "ok")
        except importlib.metadata.PackageNotFoundError:
            if name == "torch" and (problem := torch_problem(config)) is not None:
                yield Finding(name, "not installed", "WRONG", problem[1])
            elif name == "piper-tts" and needs_piper:
                remedy = "a Piper voice is chosen: pip install 'halfsec[piper]'"
                yield Finding(name, "not installed", "WRONG", remedy)
            elif name in _FOR_LANGUAGES and set(config.call_languages) & _OTHER_LANGUAGES:
                remedy = "an agent speaks another language: pip install 'halfsec[languages]'"
                yield Finding(name, "not installed", "WRONG", remedy)
            elif name in _OPTIONAL:
                yield Finding(name, "not installed", "note")
            else:
                yield Finding(name, "not installed", "WRONG", "install halfsec again")


def _gpu(config: Config) -> Finding:
    """The GPU; checked only where the settings use one."""
    if not config.llm_engine.on_gpu and config.asr.device == "cpu":
        return Finding("gpu", "none is asked for: llm_engine.dtype and device, asr.device")
    problem = gpu_problem(config)
    if problem is not None:
        key, what = problem
        return Finding(key, what, "WRONG", "or choose a preset for the processor: embedded, cpu")
    if not config.llm_engine.on_gpu:
        return Finding("gpu", "one, for the recognizer", "ok")
    from llm_engine.cuda.device import require_device

    remedy = (
        "experimental: one H100 has run the engine, with random weights, and no GPU the service"
    )
    return Finding("gpu", str(require_device()), "note", remedy)


def _traces(config: Config) -> Finding:
    endpoint, missing = config.latency_budget.otlp_endpoint, missing_exports()
    if endpoint and missing:
        return Finding("traces", f"{' and '.join(missing)} not installed", "WRONG", INSTALL_OTEL)
    if endpoint and otel_is_disabled():
        return Finding("traces", "none: OTEL_SDK_DISABLED is true", "note")
    if endpoint:
        version = importlib.metadata.version(OTEL_PACKAGES[0])
        return Finding("traces", f"to {endpoint} (OpenTelemetry {version})", "ok")
    found = next((name for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)
    remedy = f"{found} does not turn them on; that setting does" if found else ""
    return Finding("traces", "none: latency_budget.otlp_endpoint is empty", "note", remedy)


def _state() -> Iterator[Finding]:
    home = halfsec_home()
    existing = next(path for path in (home, *home.absolute().parents) if path.exists())
    if os.access(existing, os.W_OK) and existing.is_dir():
        yield Finding("HALFSEC_HOME", str(home), "ok")
    else:
        yield Finding(
            "HALFSEC_HOME",
            f"{home} can't be written",
            "note",
            "no model can be fetched there; make it writable or set HALFSEC_HOME",
        )
    free = shutil.disk_usage(existing).free
    yield Finding("free disk", f"{free / 2**30:.1f} GiB", "ok" if free >= _ROOM_BYTES else "note")


def _turn_store(config: Config) -> Finding:
    """The store of turns. Connects to a database, and changes nothing there."""
    store = config.latency_budget.store
    if store is False:
        return Finding("turns", "in memory only: latency_budget.store is off", "note")
    if store is True:
        return Finding("turns", f"in {turn_store_path()}", "ok")
    try:
        check_store(config)
    except ConfigError as error:
        return Finding("turns", error.message, "WRONG")
    from latency_budget.storage.postgres_database import PostgresDatabase

    try:
        return Finding("turns", f"in {store}: {PostgresDatabase(store).describe()}", "ok")
    except StoreError as error:
        remedy = f"calls are taken all the same; up to {MAX_WAITING} turns wait until it is mended"
        return Finding("turns", str(error), "note", remedy)


def _state_store(config: Config) -> Finding:
    """The store of calls' states. Connects to it, and changes nothing there."""
    from agent.calls.state_store.load import check_state_store, open_state_store
    from agent.calls.state_store.store import ForeignDataError, StateStoreError

    try:
        check_state_store(config)
        store = open_state_store(config, SystemClock())
    except ConfigError as error:
        return Finding("state", error.message, "WRONG")

    async def check() -> None:
        try:
            await store.check()
        finally:
            await store.close()

    try:
        asyncio.run(check())
    except ForeignDataError as error:
        return Finding("state", str(error), "WRONG")
    except StateStoreError as error:
        remedy = "calls are taken all the same; none can be resumed at another server"
        return Finding("state", str(error), "note", remedy)
    if not store.is_shared:
        return Finding("state", "in memory: a call ends with its server", "note")
    return Finding("state", f"in {shown_state_store(config.agent.state_store)}", "ok")


def _access(config: Config) -> Iterator[Finding]:
    file = KeyFile(keys_path())
    try:
        check_access(config, file)
    except HalfsecError as error:
        yield Finding("keys", error.message, "WRONG")
    else:
        number = f"{len(file.read())} in {file.path}" if file.exists() else "none was made"
        if needs_key(config, has_keys=file.exists()):
            yield Finding("keys", f"needed; {number}", "ok")
        else:
            open_to = "this machine" if is_loopback(config.agent.host) else "everybody"
            verdict: Verdict = "ok" if is_loopback(config.agent.host) else "note"
            yield Finding("keys", f"not needed: open to {open_to}; {number}", verdict)
    yield _tls(config)


def _tls(config: Config) -> Finding:
    try:
        certificate = certificate_of(config)
        if certificate is None:
            is_note = not is_loopback(config.agent.host)
            remedy = "--tls-self-signed, access.tls_cert, or a proxy" if is_note else ""
            return Finding("TLS", "none", "note" if is_note else "ok", remedy)
        if certificate.is_own and not certificate.cert.exists():
            return Finding("TLS", f"the server will make {certificate.cert}", "ok")
        server_context(certificate)
    except HalfsecError as error:
        return Finding("TLS", error.message, "WRONG")
    return Finding("TLS", f"{certificate.cert}, SHA-256 {certificate.fingerprint()}", "ok")


def _turn_server(config: Config) -> Finding:
    """The relay of calls by WebRTC, and whether there is a password for it. Contacts nothing."""
    settings, name = config.webrtc, "webrtc.turn_url"
    variable = settings.turn_password_env
    if os.environ.get(variable):
        return Finding(name, f"{settings.turn_url} ({variable} is set)", "ok")
    remedy = (
        f"set {variable} to the password, where the server is started too, or name another one in "
        "webrtc.turn_password_env; calls are tried without a relay where the password is refused"
    )
    return Finding(name, f"{settings.turn_url} ({variable} is not set)", "note", remedy)


def _models(config: Config) -> Iterator[Finding]:
    try:
        store = ModelStore()
    except ModelStoreError as error:
        yield Finding("models.toml", error.message, "WRONG")
        return
    found = list(shortfalls(config, store))
    short = {each.name: each for each in found}
    fetchable = [each for each in found if each.can_be_fetched]
    can_start = len(fetchable) == len(found)
    for reference in needed_models(config):
        if reference not in short:
            yield Finding(reference, _place(store, reference), "ok")
            continue
        remedy = ""
        if fetchable and short[reference] is fetchable[-1]:
            remedy = fetch_command(found)
            remedy = f"halfsec serve fetches them first, or: {remedy}" if can_start else remedy
        problem = short[reference].problem or "not on this machine"
        yield Finding(reference, problem, "note" if can_start else "WRONG", remedy)
    for name, plugin in plugins(config):
        if isinstance(plugin, PluginError):
            yield Finding(name, str(plugin), "WRONG")
        else:
            yield Finding(name, f"{plugin}", "ok", f"does it work? halfsec check-plugin {name}")


def _model_server(config: Config) -> Finding:
    """The server of the language model. Sends it requests of one token."""
    from agent.stages.remote.api_server import server_options
    from agent.stages.remote.model_server import ModelServer

    model = config.llm_engine.remote
    assert model is not None
    try:
        options = server_options(config, os.environ)
    except ConfigError as error:
        return Finding(model.name, error.message, "WRONG")

    async def tried() -> ModelServer:
        server = ModelServer(model, options, SystemClock())
        try:
            await server.start()
            return server
        finally:
            await server.close()

    server = asyncio.run(tried())
    problem, where = server.problem, f"at {model.url}"
    if problem is not None:
        remedy = "calls are taken all the same; until it answers, callers hear an apology"
        return Finding(model.name, f"{where}: {problem}", "note", remedy)
    if server.refused_fields:
        where += f"; it refuses {', '.join(server.refused_fields)}"
    if not server.caches_prefix:
        remedy = "answers come later than they could: see docs/how-to/model-server.md"
        return Finding(model.name, f"{where}; it keeps no prompts", "note", remedy)
    return Finding(model.name, f"{where}; it keeps prompts", "ok")


def _recognition_server(config: Config) -> Finding:
    """The server of the recognizer. Sends it half a second of silence."""
    from agent.stages.remote.api_server import server_options
    from agent.stages.remote.transcription_server import TranscriptionServer

    model = config.asr.remote
    assert model is not None
    try:
        options = server_options(config, os.environ, "asr")
    except ConfigError as error:
        return Finding(model.name, error.message, "WRONG")

    async def tried() -> tuple[str | None, bool]:
        settings = config.asr
        server = TranscriptionServer(model, options, settings.language, settings.remote_transport)
        try:
            await server.start()
            return server.problem, server.has_sessions
        finally:
            await server.close()

    problem, has_sessions = asyncio.run(tried())
    if problem is not None:
        remedy = "calls are taken all the same; until it answers, see docs/how-to/model-server.md"
        return Finding(model.name, f"at {model.url}: {problem}", "note", remedy)
    how = "Realtime sessions" if has_sessions else "uploads: no words before the first pause"
    return Finding(model.name, f"at {model.url}, by {how}", "ok" if has_sessions else "note")


def _speech_servers(config: Config) -> Iterator[Finding]:
    """The servers of voices. Has each say a word."""
    from agent.stages.remote.api_server import server_options
    from agent.stages.remote.remote_error import RemoteError
    from agent.stages.remote.speech_server import PROBE_TEXT, SpeechServer

    settings = config.tts

    async def tried(voice: RemoteModel) -> str | None:
        server = SpeechServer(voice, options, settings.remote_model, settings.remote_rate_hz)
        try:
            async for _ in server.speak(PROBE_TEXT, is_last_resort=True):
                pass
        except RemoteError:
            return server.problem or "it does not speak this text"
        finally:
            await server.close()
        return None

    for voice in remote_models(config, "tts"):
        try:
            options = server_options(config, os.environ, "tts")
        except ConfigError as error:
            yield Finding(voice.name, error.message, "WRONG")
            continue
        problem = asyncio.run(tried(voice))
        if problem is None:
            yield Finding(voice.name, f"at {voice.url}", "ok")
        else:
            remedy = f"until it answers, {settings.fallback_voice or 'nobody'} speaks"
            yield Finding(voice.name, f"at {voice.url}: {problem}", "note", remedy)


def _telephony(config: Config) -> Iterator[Finding]:
    """Settings that do not fit together; what carriers see, `doctor_telephony` says."""
    for key, problem in telephony_problems(config):
        yield Finding(key, problem, "WRONG")


def _webhooks(config: Config) -> Finding:
    """The secrets of the endpoints. Contacts nothing."""
    try:
        check_webhooks(config)
    except ConfigError as error:
        return Finding(error.key or "webhooks", error.message, "WRONG")
    return Finding("secrets", f"of {', '.join(config.webhooks)}", "ok")


def _tools(config: Config) -> Iterator[Finding]:
    """Tools of the client, and of the server. Executes the files of these; calls no MCP server."""
    try:
        check_client_tools(config)
    except ConfigError as error:
        yield Finding(error.key or "tools", error.message, "WRONG")
    if not any(profile.server_tools for profile in config.agents.values()):
        yield Finding("server_tools", "none: agents.NAME.server_tools is empty")
        return
    wrong = list(server_problems(config))
    for key, problem in wrong:
        yield Finding(key, problem, "WRONG")
    try:
        own = load_tools(config, ToolLoop("never started"))
    except ConfigError as error:
        yield Finding(error.key or "server_tools", error.message, "WRONG")
        return
    for agent, profile in config.agents.items():
        if profile.server_tools:
            elsewhere = (MCP_PREFIX, PHONE_PREFIX)
            servers = (each for each in profile.server_tools if each.startswith(elsewhere))
            names = ", ".join([*(tool.name for tool in own[agent]), *servers])
            yield Finding(f"agents.{agent}", names, "" if wrong else "ok")
    transfer = f"{PHONE_PREFIX}transfer"
    if any(transfer in profile.server_tools for profile in config.agents.values()):
        lacks = TwilioAccount(config.telephony).problem
        yield Finding(transfer, lacks or "calls of Twilio's", "note" if lacks else "ok")


def _place(store: ModelStore, reference: str) -> str:
    model = store.catalogue.get(reference)
    if model and model.package:
        return f"in the package {model.package}"
    try:
        return str(store.locate(reference))
    except ModelStoreError:  # a Piper voice of the operator, which models.toml does not list
        return str(store.directory / reference)


def _port(config: Config) -> Finding:
    host, port = config.agent.host, config.agent.port
    name = f"{host}:{port}"
    problem = listening_problem(host, port)
    if problem is None:
        return Finding(name, "free", "ok")
    if halfsec_runs(host, port):
        return Finding(name, _RUNS, "ok")
    return Finding(name, problem, "WRONG")


def _settings(config: Config) -> Iterator[Finding]:
    for setting in config.effective():
        value = " ".join(repr(setting.value).split())
        if len(value) > _SHOWN_CHARS:
            value = value[: _SHOWN_CHARS - 3] + "..."
        yield Finding(setting.key, f"{value}  ({setting.origin})")
