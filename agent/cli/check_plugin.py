"""`halfsec check-plugin`: loads an engine of another package and runs its contract."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from agent.config.sources import read_config
from agent.errors import HalfsecError
from agent.stages.model_store.catalogue import ModelStore
from engine_plugins.contract import CheckResult
from engine_plugins.discovery import PluginKind, installed_plugins, usable_name
from engine_plugins.reference import parse_plugin

from . import settings_arguments

_DESCRIPTION: Final = """\
Load an engine as the service does and check that it does what every engine must. Without a name:
list the plug-ins of the installed packages."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 if a check failed. Raises HalfsecError for a name that means no
    plug-in, and what loading raises."""
    options = _parser().parse_args(argv)
    if not options.name:
        return _list()
    failed = 0
    for kind in _kinds(options):
        print(f"{options.name} as a {kind}:")
        for result in _checked(kind, options):
            failed += bool(result.problem)
            print(f"  {'WRONG' if result.problem else 'ok':<5} {result.check}")
            if result.problem:
                print(f"        -> {result.problem}")
    if failed:
        print(f"{failed} of the checks failed; what each means: docs/how-to/engines.md")
    return 1 if failed else 0


def _kinds(options: argparse.Namespace) -> list[PluginKind]:
    """What the plug-in brings, as its entry points say."""
    if options.kind:
        return [PluginKind(options.kind)]
    reference = parse_plugin(options.name)
    if reference is None:
        raise HalfsecError(
            f"{options.name!r} is not the name of a plug-in, which is like NAME:ARGUMENT. For a "
            "model of halfsec's own, say which: --kind recognizer, voice or chat.",
            code="plugin",
        )
    kinds = [
        kind
        for kind in PluginKind
        if any(plugin.name == reference.name for plugin in installed_plugins(kind))
    ]
    if not kinds:
        groups = ", ".join(kind.group for kind in PluginKind)
        raise HalfsecError(
            f"No installed package brings a plug-in {reference.name!r}: none has an entry point of "
            f"this name in {groups}. Is it installed in this environment?",
            code="plugin",
        )
    return kinds


def _checked(kind: PluginKind, options: argparse.Namespace) -> Iterator[CheckResult]:
    config = read_config(settings_arguments.flags_of(options), options.config)
    name, store = options.name, ModelStore()
    is_plugin = parse_plugin(name) is not None
    if kind == PluginKind.VOICE:
        import tts
        from tts.contract import voice_checks

        yield from voice_checks(tts.load_voice(name, store.directory, threads=config.tts.threads))
    elif kind == PluginKind.RECOGNIZER:
        import asr
        from asr.contract import recognizer_checks

        recognizer = asr.load_recognizer(
            name if is_plugin else store.locate(name),
            threads=config.asr.threads,
            compute_type=config.asr.compute_type,
            device=config.asr.device,
            language=config.asr.language,
        )
        speech = asr.read_file(options.speech) if options.speech else None
        yield from recognizer_checks(recognizer, speech)
    else:
        import llm_engine
        from llm_engine.chat.contract import chat_checks

        settings = config.llm_engine
        chat_options = llm_engine.ChatModelOptions(settings.threads, settings.context)
        yield from chat_checks(
            llm_engine.load_chat(name if is_plugin else store.locate(name), chat_options)
        )


def _list() -> int:
    for kind in PluginKind:
        found = installed_plugins(kind)
        print(f"{kind.group}: {'none' if not found else ''}")
        for plugin in found:
            note = "" if usable_name(plugin.name) else "  (this name can't be used: see the guide)"
            print(f'  {kind.setting} = "{plugin.name}:..."   {plugin}{note}')
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec check-plugin",
        description=_DESCRIPTION,
        epilog="example: halfsec check-plugin kokoro:af_heart",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME:ARGUMENT", help="as it stands in the settings"
    )
    parser.add_argument(
        "--kind",
        choices=[kind.value for kind in PluginKind],
        help="what it brings, where there are several of this name",
    )
    parser.add_argument(
        "--speech",
        type=Path,
        metavar="FILE",
        help="an utterance for a recognizer; default: English",
    )
    settings_arguments.add_arguments(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
