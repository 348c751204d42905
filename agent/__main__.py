"""The `halfsec` command: its subcommands, and the startup checks of `halfsec serve`.

Heavy modules are imported only after the subcommand is parsed, so that `--help` answers at once. A
user's mistake ends in one line with the remedy, never in a traceback.
"""

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from .errors import ConfigError, HalfsecError

EXIT_ERROR: Final = 2

_FORWARDED: Final[dict[str, tuple[str, str]]] = {
    "talk": (
        "agent.client.simulated_caller.talk",
        "play a recording to the server as a caller would, save its answer",
    ),
    "call": ("agent.cli.call", "call a telephone number, by Twilio"),
    "bench": ("agent.cli.bench", "measure latency and quality over many recordings"),
    "replay": ("agent.cli.replay", "take the decisions of a recorded call again and compare"),
    "plan": ("agent.cli.plan", "how many replicas a load needs, and how many calls are refused"),
    "train-heads": ("llm_engine.training.train_heads", "train draft heads for a language model"),
    "report": ("agent.cli.report", "show where the time of recorded calls went"),
    "reload": ("agent.cli.reload", "have the running server read its settings file anew"),
    "check-plugin": (
        "agent.cli.check_plugin",
        "check a recognizer, voice or chat model of another package",
    ),
    "licences": ("agent.cli.licences", "list the licences of packages, models and files"),
}
"""Subcommands that parse their own arguments: name -> (module with `main(argv)`, help line)."""

_OWN_PACKAGES: Final = frozenset(
    {"agent", "asr", "engine_plugins", "llm_engine", "tts", "latency_budget"}
)
"""Packages whose error messages are written for the user. Errors of other packages are printed with
their class name."""

_EXTRAS: Final[dict[str | None, str]] = {"torch": "torch", "triton": "cuda"}
"""Extra that brings a module which commands import without a check of their own."""

_EPILOG: Final = """\
examples:
  halfsec serve                          listen on http://127.0.0.1:8080
  halfsec serve --port 9000 --preset cpu
  halfsec talk question.wav --out answer.wav
  halfsec bench                          which benches there are
  halfsec models fetch                   download the models that the settings need
  halfsec keys add ana                   make a key; from then on the server asks for one
  halfsec plan --help                    how many machines for how many calls?
  halfsec settings                       what can be set
  halfsec reload                         apply a changed settings file to new calls
  halfsec doctor                         why does it not work?
  halfsec doctor --telephony             why does the telephone not ring?

Settings: halfsec.toml in the working directory, or --config FILE; HALFSEC_AGENT__PORT and the like
in the environment; --set agent.port=9000 on the command line. State: HALFSEC_HOME (~/.halfsec).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Returns the exit status: 0, 1 (negative result) or 2 (failure)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(arguments) or 0
        sys.stdout.flush()
        return status
    except HalfsecError as error:
        return _fail(error.message)
    except KeyboardInterrupt:
        return _fail("stopped")
    except BrokenPipeError:
        # The reader of stdout has closed it; the interpreter must not flush it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except Exception as error:
        if os.environ.get("PYTHONDEVMODE"):
            raise
        text = " ".join(str(error).split()) or "no message"
        if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
            extra = _EXTRAS[error.name]
            return _fail(f"this needs {error.name}, not installed: pip install 'halfsec[{extra}]'")
        if type(error).__module__.partition(".")[0] in _OWN_PACKAGES:
            return _fail(text)
        return _fail(f"{type(error).__name__}: {text} (the traceback: PYTHONDEVMODE=1)")


def _run(arguments: list[str]) -> int | None:
    if arguments and arguments[0] in _FORWARDED:
        module, _ = _FORWARDED[arguments[0]]
        command: Callable[[list[str]], int | None] = importlib.import_module(module).main
        return command(arguments[1:])
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    run: Callable[[argparse.Namespace], int | None] = options.run
    return run(options)


def build_parser() -> argparse.ArgumentParser:
    from .cli import keys as cli_keys
    from .cli import models as cli_models
    from .cli import settings_arguments

    parser = argparse.ArgumentParser(
        prog="halfsec",
        description="A self-hosted voice agent, built to answer within half a second.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"halfsec {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="start the server",
        description="Start the server and print the address of its page.",
        epilog="example: halfsec serve --port 9000 --set llm_engine.temperature=0.4",
    )
    settings_arguments.add_address(serve)
    settings_arguments.add_arguments(serve)
    serve.add_argument(
        "--no-fetch", action="store_true", help="fail where a model is missing, instead of fetching"
    )
    serve.set_defaults(run=_serve)
    for name, (_, line) in _FORWARDED.items():
        commands.add_parser(name, help=line, add_help=False)
    models = commands.add_parser(
        "models",
        help="list, fetch and verify models",
        description="The models that halfsec knows by name.",
        epilog="example: halfsec models fetch whisper-base",
    )
    cli_models.add_arguments(models)
    models.set_defaults(run=cli_models.main)
    keys = commands.add_parser(
        "keys",
        help="make, list and revoke the keys that open the server",
        description="Keys are shown once, when they are made; HALFSEC_HOME/keys.json has hashes.",
        epilog="example: halfsec keys add ana --max-calls 2 --expires 90d",
    )
    cli_keys.add_arguments(keys)
    keys.set_defaults(run=cli_keys.main)
    _add_doctor(commands)
    settings = commands.add_parser(
        "settings",
        help="what can be set: meaning, bounds and default of each setting",
        description="Print a settings file that names everything and changes nothing.",
        epilog="example: halfsec settings > halfsec.toml",
    )
    settings.add_argument("--preset", help="whose defaults to show")
    settings.set_defaults(run=_settings)
    return parser


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from .cli import settings_arguments

    doctor = commands.add_parser(
        "doctor",
        help="check the machine, the models and the settings",
        description="Print what halfsec finds here. Exit status 1 if the server could not start.",
        epilog="example: halfsec doctor --config halfsec.toml",
    )
    settings_arguments.add_address(doctor)
    settings_arguments.add_arguments(doctor)
    doctor.add_argument(
        "--telephony",
        action="store_true",
        help="instead: what a carrier of telephone calls sees that calls the server which runs",
    )
    doctor.set_defaults(run=_doctor)


def _serve(options: argparse.Namespace) -> int:
    from agent.calls.state_store.load import check_state_store
    from agent.cli.models import fetch_missing
    from agent.cli.settings_arguments import flags_of
    from agent.config.remote_models import REMOTE_SECTIONS
    from agent.config.schema import remote_models
    from agent.config.sources import read_config, reread_config
    from agent.http.auth.keys import KeyFile, keys_path
    from agent.http.auth.tls import certificate_of, keep_own, server_context
    from agent.server.startup_checks.access import check_access, tell_of_access
    from agent.server.startup_checks.port import listening_problem
    from agent.server.startup_checks.preflight import (
        check_exports,
        check_gpu,
        check_models,
        check_remote,
        check_store,
        check_torch,
        check_webhooks,
    )
    from agent.server.startup_checks.telephony import check_telephony
    from agent.server.startup_checks.tools import check_tools
    from agent.stages.machine_speed import measure_machine
    from agent.stages.model_store.catalogue import ModelStore
    from agent.stages.model_store.hub import hub_obstacle
    from latency_budget.host import missing_instructions

    config = read_config(flags_of(options), options.config, None, measure_machine, hub_obstacle)
    check_access(config, KeyFile(keys_path()))
    check_telephony(config)
    certificate = certificate_of(config)
    if certificate is not None and certificate.is_own:
        keep_own(config, certificate)
    tls = None if certificate is None else server_context(certificate)
    check_exports(config)
    check_store(config)
    check_webhooks(config)
    check_state_store(config)
    check_remote(config)
    check_torch(config)
    check_gpu(config)
    if options.no_fetch:
        check_models(config, ModelStore())
    else:
        fetch_missing(config, ModelStore())
    check_tools(config)
    problem = listening_problem(config.agent.host, config.agent.port)
    if problem is not None:
        raise ConfigError(problem, key="agent.port")
    if config.is_chosen:
        origin = config.origins["agent.preset"]
        print(f"Preset {config.agent.preset}, {origin}.", file=sys.stderr, flush=True)
    for section in REMOTE_SECTIONS:
        what = {"llm_engine": "Language model", "asr": "Recognizer", "tts": "Voice"}[section]
        for model in remote_models(config, section):
            print(f"{what} {model}.", file=sys.stderr, flush=True)
    if lack := missing_instructions():
        print(f"This processor has {lack}: everything works, slower.", file=sys.stderr, flush=True)
    for line in tell_of_access(config, certificate):
        print(line, file=sys.stderr, flush=True)
    # Only now: the server imports the stages, which takes seconds.
    from agent.server.server import serve

    return serve(config, tls, partial(reread_config, config, flags_of(options), options.config))


def _doctor(options: argparse.Namespace) -> int:
    from agent.cli.settings_arguments import flags_of
    from agent.config.sources import read_config
    from agent.stages.machine_speed import measure_machine
    from agent.stages.model_store.hub import hub_obstacle

    config = read_config(flags_of(options), options.config, None, measure_machine, hub_obstacle)
    if options.telephony:
        from .cli import doctor_telephony  # only here: it imports HTTP and WebSockets

        return doctor_telephony.main(config)
    from .cli import doctor

    return doctor.main(config)


def _settings(options: argparse.Namespace) -> int:
    from agent.config.help import settings_file
    from agent.config.layers import load_config

    print(settings_file(load_config({"agent.preset": options.preset} if options.preset else None)))
    return 0


def _fail(message: str) -> int:
    print(f"halfsec: {message}", file=sys.stderr)
    return EXIT_ERROR


def _version() -> str:
    try:
        return importlib.metadata.version("halfsec")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
