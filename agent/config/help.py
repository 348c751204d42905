"""`halfsec settings`: a settings file with every setting, its meaning, bounds and default.

In the printed file everything is commented out. Its text comes from the classes of the sections: a
field's docstring, which only the source has, and its annotation.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from .auto_preset import AUTO
from .presets import PRESETS
from .schema import DEFAULT_AGENT, SECTIONS, AgentProfile, Config
from .tools import McpSettings
from .values import Between, Matching
from .webhooks import WebhookSettings

_WIDTH: Final = 100

_HEAD: Final = """\
# Settings of halfsec, preset {preset}. All are at their defaults: take the "#" away from what
# you change. Each can also come from the environment, as HALFSEC_SECTION__KEY, or from the command
# line, as --set SECTION.KEY=VALUE."""


NOT_SET: Final = "Not set. An example:"
"""Line above the example of a setting that is not set: TOML has no word for that."""

_EXAMPLES: Final[dict[str, str | int]] = {
    "trace_dir": "traces",
    "record_dir": "recordings",
    "voice": "hibari",
    "language": "de",
    "pace_ms": 700,
    "budget_ms": 800,
    "timeout_s": 5,
}
"""Values of these settings, by key."""


def settings_file(config: Config) -> str:
    """The text of a settings file with the values of `config`, commented out."""
    parts = [_HEAD.format(preset=config.agent.preset)]
    for section, kind in SECTIONS.items():
        if fields(kind):
            parts.append("\n".join(_section(section, getattr(config, section))))
    parts.append("\n".join(_section(f"agents.{DEFAULT_AGENT}", config.agents[DEFAULT_AGENT])))
    for name, values in (("mcp.NAME", McpSettings()), ("webhooks.NAME", WebhookSettings())):
        parts.append("\n".join(f"#   {line}".rstrip() for line in _section(name, values)))
    return "\n\n".join(parts) + "\n"


def _section(name: str, values: Any) -> Iterator[str]:
    kind = type(values)
    words = _docstrings(kind)
    kinds = get_type_hints(kind, include_extras=True)
    yield f"[{name}]"
    for key in kinds:
        if kind is AgentProfile and key == "preset":
            continue  # the default agent's is agent.preset
        rule = f"One of {', '.join([AUTO, *PRESETS])}." if key == "preset" else _rule(kinds[key])
        yield ""
        for text in (words.get(key, ""), rule):
            yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        yield from (f"# {line}" for line in _assignment(key, getattr(values, key)))


def _docstrings(kind: type) -> dict[str, str]:
    """Docstrings of the fields of a class: the string below each field, on one line."""
    result: dict[str, str] = {}
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                result[name] = " ".join(text.split())
    return result


def _rule(kind: Any) -> str:
    """Sentence about the values that an annotation allows beyond its type."""
    if get_origin(kind) is Literal:
        return f"One of {', '.join(map(str, get_args(kind)))}."
    for rule in getattr(kind, "__metadata__", ()):
        if isinstance(rule, Between):
            return f"From {rule.low:g} to {rule.high:.7g}."
        if isinstance(rule, Matching):
            return f"{rule.words[0].upper()}{rule.words[1:]}."
    return next((text for inner in get_args(kind) if (text := _rule(inner))), "")


def _assignment(key: str, value: Any) -> list[str]:
    if value is None:
        return [NOT_SET, f"{key} = {_toml(_EXAMPLES[key])}"]
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [f"{key} = [", *(f"  {_toml(item)}," for item in value), "]"]
    return [f"{key} = {_toml(value)}"]


def _toml(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)
