"""Reference of the settings, from what `halfsec settings` prints."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from agent.config.help import NOT_SET, settings_file
from agent.config.layers import load_config
from agent.config.presets import PRESETS

_HEAD: Final = """\
# Settings

Every setting with its meaning, bounds and default (preset `embedded`). The page is generated from
the code; `halfsec settings` prints the same as a file to begin with, and `halfsec doctor` says
which value is in force on a machine and where it comes from.

Sources, later ones win: the preset, `halfsec.toml` in the working directory (or `--config FILE`, or
the file named by `HALFSEC_CONFIG`), the environment (`HALFSEC_SECTION__KEY`, of the section
`[agents.front-desk]` `HALFSEC_AGENTS__FRONT_DESK__KEY`), flags (`--set SECTION.KEY=VALUE`). A key
that does not exist is an error that names the nearest right one.
State (keys, models, the store of turns) is kept in `HALFSEC_HOME`, by default `~/.halfsec`.
"""


_NONE: Final = "(not set)"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is printed."""

    section: str
    key: str
    text: str
    """Meaning and bounds."""
    default: str
    """TOML, or `_NONE`."""


def settings(preset: str | None = None) -> Iterator[Setting]:
    """All settings in the order in which they are printed."""
    text = settings_file(load_config({"agent.preset": preset} if preset else None))
    section = ""
    lines = [re.sub(r"^#   ", "", line).rstrip() for line in text.splitlines()]
    lines = ["" if line == "#" else line for line in lines]
    for filled, group in groupby(lines, key=bool):
        block = list(group)
        if not filled:
            continue
        if block[0].startswith("["):
            section = block[0].strip("[]")
            continue
        if not section:
            continue
        bare = [line.removeprefix("# ") for line in block]
        first = next(i for i, line in enumerate(bare) if re.match(r"\w+ = ", line))
        key, _, value = bare[first].partition(" = ")
        is_set = bare[first - 1] != NOT_SET
        default = "\n".join([value, *bare[first + 1 :]]) if is_set else _NONE
        yield Setting(section, key, " ".join(bare[: first if is_set else first - 1]), default)


def page() -> str:
    """Markdown of the page."""
    parts = [_HEAD, _presets()]
    for section, group in groupby(settings(), key=lambda setting: setting.section):
        parts.append(f"## [{section}]\n")
        parts += map(_entry, group)
    return "\n".join(parts)


def _entry(setting: Setting) -> str:
    name = f"{setting.section}.{setting.key}"
    if "\n" in setting.default:
        default = f"Default:\n\n```toml\n{setting.key} = {setting.default}\n```\n"
    elif setting.default == _NONE:
        default = "Not set by default.\n"
    else:
        default = f"Default: `{setting.default}`\n"
    return f"### {name}\n\n{setting.text}\n\n{default}"


def _presets() -> str:
    """Table of the presets: what each one sets beside the defaults."""
    rows = ["## Presets\n", "| preset | what it sets |", "| --- | --- |"]
    for name, sections in PRESETS.items():
        values = [
            f"`{section}.{key} = {str(value).lower() if isinstance(value, bool) else value!r}`"
            for section, keys in sections.items()
            if section != "agents"
            for key, value in keys.items()
        ]
        rows.append(f"| `{name}` | {', '.join(values)}; instructions and examples to match |")
    return "\n".join(rows) + "\n"
