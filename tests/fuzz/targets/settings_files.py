"""Settings: halfsec.toml, the environment, and `--set` on the command line.

An input is the text of a file, or, behind a byte of 0, a JSON object with sections, variables and
flags. Settings are read, or refused with a ConfigError that names a key or the file.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final

from agent.config.layers import load_config
from agent.config.schema import SECTIONS, AgentProfile, Config
from agent.config.tools import McpSettings
from agent.config.webhooks import WebhookSettings
from agent.errors import ConfigError
from tests.fuzz.target import JsonGrammar, Target

KINDS: Final[dict[str, type]] = {
    **SECTIONS,
    "agents.default": AgentProfile,
    "mcp.x": McpSettings,
    "webhooks.x": WebhookSettings,
}
KEYS: Final = [f"{name}.{item.name}" for name, kind in KINDS.items() for item in fields(kind)]


def _as_tables(config: Config) -> dict[str, dict[str, Any]]:
    """The settings of each section as JSON has them."""
    tables: dict[str, dict[str, Any]] = {}
    for name, kind in SECTIONS.items():
        section = getattr(config, name)
        values = {item.name: getattr(section, item.name) for item in fields(kind)}
        tables[name] = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if value is None or isinstance(value, str | int | float | tuple)
        }
    return tables


SAMPLES: Final[tuple[dict[str, Any], ...]] = (
    {"file": _as_tables(load_config()), "env": {}, "flags": {}},
    {"file": {"agent": {"preset": "embedded", "port": 8081, "max_sessions": 4},
        "agents": {"sales": {"instructions": "x", "preset": "cpu", "server_tools": ["mcp:x"]}},
        "mcp": {"x": {"command": ["run"]}}, "telephony": {"transfers": {"sales": "+4930"}}},
        "env": {"PORT": "9000", "HALFSEC_LLM_ENGINE__TEMPERATURE": "0.5"},
        "flags": {"agent.port": "9001", "llm_engine.model": "openai:http://x:8000/v1#m"}},
    {"file": {"agents": {"default": {"tools": [{"type": "function", "name": "f"}]}}},
        "env": {f"HALFSEC_{key.upper().replace('.', '__')}": "1" for key in KEYS[:3]},
        "flags": dict.fromkeys(KEYS[:5], "1")},
)  # fmt: skip
VALUES: Final[Sequence[Any]] = (
    *("true", "[]", "1e9", "auto", "cpu", "embedded", "remote", "float32", "int4", "cuda"),
    *("message", "navigate", "openai:http://x#m", "openai:https://a:b@c/v1#m", "http://x", "*"),
    *("[1]", '["a"]'),
    *("2026-11-26", "9" * 500, 10**400, {"sales": "+1"}, ["phone:transfer"], ["phone:press_keys"]),
    *(["mcp:x"], [[[]]], {"a": {"b": {}}}, {"agent.preset": "auto"}, {"agents.a.b": 1}),
)  # fmt: skip
GRAMMAR: Final = JsonGrammar([*SAMPLES, {"values": list(VALUES)}, dict.fromkeys(KEYS, 1)])


def examine(data: bytes) -> None:
    """One set of settings."""
    env: dict[str, str] = {}
    flags: dict[str, Any] = {}
    if data[:1] == b"\x00":
        try:
            given = json.loads(data[1:])
            text = "\n".join(_lines(given.get("file") or {}))
            env = {str(name): str(value) for name, value in dict(given.get("env") or {}).items()}
            flags = {str(name): value for name, value in dict(given.get("flags") or {}).items()}
        except (ValueError, RecursionError, TypeError, AttributeError):
            return  # no description
    else:
        text = data.decode(errors="replace")
    try:
        load_config(flags, env, text)
    except ConfigError as error:
        assert error.message, error


def _lines(file: dict[str, Any]) -> Iterator[str]:
    """The sections as TOML."""
    for name, section in file.items():
        if not isinstance(section, dict):
            yield f"{json.dumps(name)} = {_toml(section)}"
    for name, section in file.items():
        if isinstance(section, dict):
            yield f"[{json.dumps(name)}]"
            yield from (f"{json.dumps(key)} = {_toml(value)}" for key, value in section.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = (f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items())
        return f"{{ {', '.join(inner)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)  # nan and inf too
    return json.dumps(value)


def change(data: bytes, chance: random.Random) -> bytes | None:
    """Descriptions as JSON; a file as bytes."""
    if data[:1] != b"\x00":
        return None
    text: bytes | None = data[1:]
    for _ in range(chance.choice((1, 1, 2, 3))):
        text = None if text is None else GRAMMAR.change_text(text, chance)
    return None if text is None else b"\x00" + text


def seeds() -> list[bytes]:
    described = [b"\x00" + json.dumps(sample).encode() for sample in SAMPLES]
    return [*described, *("\n".join(_lines(sample["file"])).encode() for sample in SAMPLES)]


TARGET: Final = Target(
    examine,
    seeds,
    change,
    words=[*(f"{key.rpartition('.')[2]} = ".encode() for key in KEYS), b"[[", b"'''", b'"""'],
    max_bytes=8000,
)
