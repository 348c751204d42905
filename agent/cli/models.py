"""`halfsec models`: list, fetch and verify models; write a tokenizer for load generators."""

import argparse
import sys
from pathlib import Path

from agent.config.presets import DEFAULT_PRESET
from agent.config.schema import Config
from agent.config.sources import read_config
from agent.server.startup_checks.preflight import check_models, shortfalls
from agent.stages.machine_speed import measure_machine
from agent.stages.model_store.catalogue import Model, ModelStore, ModelStoreError, needed_models
from agent.stages.model_store.hub import hub_obstacle

from . import settings_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `halfsec models`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="what there is and what is present (the default)")
    fetch = actions.add_parser("fetch", help="download what is missing")
    fetch.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="names or Hugging Face ids; none: what the settings need, and with the embedded "
        "presets the smallest models",
    )
    fetch.add_argument(
        "--models-from", type=Path, metavar="DIR", help="look for files and wheels here first"
    )
    settings_arguments.add_arguments(fetch)
    verify = actions.add_parser("verify", help="read every file again and compare its hash")
    verify.add_argument("names", nargs="*", metavar="NAME", help="none: all that are present")
    tokenizer = actions.add_parser(
        "tokenizer", help="write a language model's tokenizer for transformers and load generators"
    )
    tokenizer.add_argument("name", metavar="NAME", help="a name, path or Hugging Face id")
    tokenizer.add_argument("directory", type=Path, metavar="DIR", help="made if missing")


def main(options: argparse.Namespace) -> int:
    """Run the command. Returns 0. Raises ModelStoreError."""
    store = ModelStore()
    if options.action == "fetch":
        flags = settings_arguments.flags_of(options)
        config = read_config(flags, options.config, None, measure_machine, hub_obstacle)
        if config.is_chosen and not options.names:
            origin = config.origins["agent.preset"]
            print(f"Preset {config.agent.preset}, {origin}.", file=sys.stderr)
        return _fetch(store, options.names or wanted_models(config, store), options.models_from)
    if options.action == "verify":
        return _verify(store, options.names)
    if options.action == "tokenizer":
        return _write_tokenizer(store, options.name, options.directory)
    _list(store)
    return 0


def wanted_models(config: Config, store: ModelStore) -> list[str]:
    """Models that a set-up fetches: those of the settings; with a preset whose models come with
    packages, the smallest ones too."""
    wanted = needed_models(config)
    if config.agent.preset.startswith(DEFAULT_PRESET):
        unused = () if config.llm_engine.has_engine else ("llm",)
        wanted += [
            model.name
            for model in store.catalogue.values()
            if model.embedded and model.stage not in unused
        ]
    return list(dict.fromkeys(wanted))


def _fetch(store: ModelStore, names: list[str], models_from: Path | None) -> int:
    # huggingface_hub and tqdm take a third of a second to import: only when something is missing.
    from agent.stages.model_store.fetch import ModelFetcher

    fetched = ModelFetcher(store, models_from).fetch(names)
    for name in fetched:
        print(f"{name}: ready", file=sys.stderr)
    if not fetched:
        print("All models are present.", file=sys.stderr)
    return 0


def fetch_missing(config: Config, store: ModelStore) -> None:
    """Fetch what `halfsec serve` lacks, with progress bars. Raises ModelStoreError, before anything
    is fetched where a model can't be."""
    found = list(shortfalls(config, store))
    if any(not each.can_be_fetched for each in found):
        check_models(config, store)
    if found:
        names = [each.name for each in found]
        print(f"Fetching models: {', '.join(names)}.", file=sys.stderr, flush=True)
        _fetch(store, names, None)


def _verify(store: ModelStore, names: list[str]) -> int:
    from_hub = store.hub_records() if not names else {}
    models = store.known(names) if names else _on_disk(store)
    found = [(model.name, list(store.problems(model, rehash=True))) for model in models]
    found += [
        (f"{name} (revision {record.revision})", list(store.hub_problems(record, rehash=True)))
        for name, record in from_hub.items()
    ]
    bad = 0
    for name, problems in found:
        bad += bool(problems)
        print(f"{name}: {'as it should be' if not problems else 'WRONG'}")
        for problem in problems:
            print(f"  {problem}")
    if bad:
        raise ModelStoreError("Get the damaged ones again with: halfsec models fetch")
    return 0


def _write_tokenizer(store: ModelStore, name: str, directory: Path) -> int:
    from llm_engine.checkpoints.tokenizer_export import save_tokenizer

    save_tokenizer(store.locate(name), directory)
    print(f"{directory}: ready for transformers.AutoTokenizer", file=sys.stderr)
    return 0


def _on_disk(store: ModelStore) -> list[Model]:
    return [model for model in store.catalogue.values() if store.model_directory(model).is_dir()]


def _list(store: ModelStore) -> None:
    width = max(map(len, store.catalogue), default=0) + 2
    print(f"{'name':<{width}}{'stage':<7}{'size':>8}  {'present':<9}licence")
    for model in store.catalogue.values():
        size = f"{model.size_bytes / 1e6:.0f} MB" if model.files else "-"
        presence = store.presence(model.name)
        print(f"{model.name:<{width}}{model.stage:<7}{size:>8}  {presence:<9}{model.licence}")
        print(f"{'':<{width}}{model.about}")
    print(f"\nThey lie in {store.directory}. More: halfsec models fetch NAME")
