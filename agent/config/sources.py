"""Reader of the settings file and the environment, which `layers.py` checks and merges."""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from agent.errors import ConfigError

from .auto_preset import Measure, Obstacle, PresetChoice, preset_for_here
from .layers import load_config
from .schema import CHOSEN, Config

FILE_NAME: Final = "halfsec.toml"


def read_config(
    flags: Mapping[str, object] | None = None,
    path: str | None = None,
    env: Mapping[str, str] | None = None,
    measure: Measure | None = None,
    obstacle: Obstacle = lambda preset: "",
) -> Config:
    """Read the settings of this process. For the preset "auto": `measure` on a machine that was
    never measured, and `obstacle` to a preset whose models come from the hub.

    The file is `path`, else HALFSEC_CONFIG, else halfsec.toml in the working directory where there
    is one. Raises ConfigError, also for a file that was named and can't be read.
    """
    env = os.environ if env is None else env
    choose = partial(preset_for_here, measure=measure, env=env, obstacle=obstacle)
    return load_config(flags, env, *read_settings_file(path, env), choose)


def reread_config(
    running: Config,
    flags: Mapping[str, object] | None = None,
    path: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Config:
    """Read the settings of a process that runs with `running` anew. "auto" stands for the preset
    that runs: what is free of the machine's memory now says nothing about another one.

    Where the file names another preset, its prompts and models are not taken: they belong together,
    and the models that run are those of the old one. Raises ConfigError as `read_config` does.
    """
    env = os.environ if env is None else env
    text, name = read_settings_file(path, env)
    running_preset, threads = running.agent.preset, running.llm_engine.threads
    reason = running.origins.get("agent.preset", "").removeprefix(CHOSEN)
    choice = PresetChoice(running_preset, reason, threads)
    new = load_config(flags, env, text, name, lambda num_calls: choice)
    if new.agent.preset == running_preset:
        return new
    kept = load_config({**(flags or {}), "agent.preset": running_preset}, env, text, name)
    return replace(kept, agent=replace(kept.agent, preset=new.agent.preset))


def read_settings_file(path: str | None, env: Mapping[str, str]) -> tuple[str, str]:
    """Text and name of the settings file, as `read_config` finds it; no text where there is none.
    Raises ConfigError for a file that was named and can't be read, and for a directory that can't
    be searched."""
    named = path or env.get("HALFSEC_CONFIG")
    file = Path(named or FILE_NAME)
    try:
        if not named and not file.exists():
            return "", FILE_NAME
    except OSError as error:  # a directory that this user may not enter
        raise ConfigError(
            f"Can't look for {FILE_NAME} in this directory: {error.strerror}. Change to another "
            "one, or name the file: --config FILE, or HALFSEC_CONFIG."
        ) from None
    try:
        return file.read_text(encoding="utf-8"), str(file)
    except OSError as error:
        raise ConfigError(f"Can't read the settings file {file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The settings file {file} is not UTF-8 text.") from None
