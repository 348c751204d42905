"""The documentation: every code block is run or parsed, every name and link in it exists."""

import ast
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from agent import errors
from agent.__main__ import build_parser
from agent.config.layers import load_config
from agent.http.endpoints.openapi import description
from agent.realtime.protocol.parse import _READERS
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.server_events import (
    OutputAudioCleared,
    OutputAudioStarted,
    OutputAudioStopped,
)
from agent.session.api.settings import SessionSettings
from benchmarks.chat.dialogue import read_dialogues
from docs.generate import commands_page, events_page, metrics_page, settings_page
from docs.generate.offline import foreign
from docs.generate.pages import GENERATED, source

ROOT: Final = Path(__file__).resolve().parents[1]
PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

SITE: Final = {path: content.decode() for path, content in source().items() if path.endswith(".md")}
"""Pages of the site, generated ones among them, by path below `docs/`."""

PAGES: Final = {
    "README.md": (ROOT / "README.md").read_text(encoding="utf-8"),
    "docs/README.md": (ROOT / "docs" / "README.md").read_text(encoding="utf-8"),
    "examples/README.md": (ROOT / "examples" / "README.md").read_text(encoding="utf-8"),
    **{f"docs/{path}": text for path, text in SITE.items()},
}
"""All that is checked, by path in the repository."""

LANGUAGES: Final = frozenset(
    {"bash", "ini", "javascript", "json", "python", "text", "toml", "yaml"}
)
"""JavaScript: one block, which `tests/web/test_webrtc.py` runs."""

OTHER_COMMANDS: Final = frozenset(
    {
        "aiperf",
        "cd",
        "cp",
        "createdb",
        "curl",
        "docker",
        "guidellm",
        "kubectl",
        "ncu",
        "nsys",
        "perf",
        "pip",
        "py-spy",
        "ray",
        "serve",
        "sudo",
        "systemctl",
        "top",
        "useradd",
        "vllm",
        "vtune",
    }
)
"""Commands of others in blocks of bash. Options of theirs are not checked."""


OTHER_MODULES: Final = frozenset({"kokoro_onnx", "llama_cpp", "moonshine_voice"})
"""Modules of others that need not be installed here: of the example engines."""


TYPED: Final = frozenset({"asr", "llm_engine", "tts"})
"""Packages with public names that pages speak of."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:40] if self.text else ''}"


def blocks(language: str | None = None) -> list[Block]:
    """Blocks of all pages in one language, or in any."""
    found = []
    for page, text in PAGES.items():
        for indent, name, body in re.findall(
            r"^( *)```([^\n]*)\n(.*?)^ *```$", text, flags=re.DOTALL | re.MULTILINE
        ):
            lines = [line.removeprefix(indent) for line in body.splitlines()]
            found.append(Block(page, name.strip(), "\n".join(lines)))
    return [block for block in found if language in (None, block.language)]


def inline(page: str) -> list[str]:
    """Inline code of a page, on one line each, blocks left out."""
    text = re.sub(r"^ *```.*?^ *```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


@cache
def settings() -> frozenset[str]:
    """Names of all settings, as `section.key`."""
    return frozenset(f"{each.section}.{each.key}" for each in settings_page.settings())


@cache
def served() -> frozenset[str]:
    """Paths that the server has, parameters as `{}`."""
    sockets = re.findall(r"^- `(/[^`]+)`$", SITE["reference/http.md"], flags=re.MULTILINE)
    paths = [*description()["paths"], *sockets, "/", "/dashboard"]
    return frozenset(re.sub(r"\{.*?\}", "{}", path) for path in paths)


# Blocks


def test_every_block_says_its_language() -> None:
    assert not [str(block) for block in blocks() if block.language not in LANGUAGES]
    assert len(blocks()) > 100


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_settings_and_dialogues_are_accepted(block: Block, tmp_path: Path) -> None:
    if block.text.startswith("[project]"):
        assert tomllib.loads(block.text)["project"]["name"]
    elif block.text.startswith("[[dialogue]]"):
        file = tmp_path / "own.toml"
        file.write_text(block.text, encoding="utf-8")
        assert read_dialogues([file])
    elif block.page == "docs/reference/settings.md":
        tomllib.loads(block.text)  # one key, without its section
    else:
        load_config(file_text=block.text)


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_parses(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_parses_and_its_settings_are_accepted(block: Block) -> None:
    for application in yaml.safe_load(block.text).get("applications", ()):
        load_config({}, application.get("runtime_env", {}).get("env_vars", {}))


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles_and_its_imports_exist(block: Block) -> None:
    tree = compile(block.text, block.page, "exec", flags=ast.PyCF_ONLY_AST)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                assert name.name in OTHER_MODULES or find_spec(name.name), name.name
        if isinstance(node, ast.ImportFrom):
            assert node.module
            module = importlib.import_module(node.module)
            for name in node.names:
                is_there = hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}")
                assert is_there, f"{node.module}.{name.name}"


def test_waits_and_budgets_are_filled_in() -> None:
    assert not [path for path, text in SITE.items() if "<!-- generate" in text]
    assert "| `auto` |" in SITE["how-it-works/end-of-turn.md"]
    assert "| **500** |" in SITE["how-it-works/budget.md"]


# Commands


def shell_commands() -> Iterator[tuple[str, str]]:
    """Page and command of each line in blocks of bash, and of inline code that is a command."""
    for block in blocks("bash"):
        text = re.sub(r"(^|\s)#.*$", "", block.text, flags=re.MULTILINE)
        text = re.sub(r"\$\([^)]*\)", "x", re.sub(r"\\\n\s*", "", text))
        # A quoted argument may have line breaks.
        for line in re.findall(r"(?:'[^']*'|[^'\n])+", text):
            for command in re.split(r"\s+&&\s+", line):
                if command.strip():
                    yield block.page, command.strip()
    for page in PAGES:
        for code in inline(page):
            if re.match(r"(halfsec|make|pip install|python -m) ", code):
                yield page, code.replace("|", " ")


def words_of(command: str) -> tuple[dict[str, str], list[str]]:
    """Variables that are set for a command, and its words up to a redirection."""
    words = shlex.split(command.partition(" > ")[0])
    variables: dict[str, str] = {}
    while words and (words[0] == "export" or re.match(r"[A-Z_]+=", words[0])):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return variables, words


COMMANDS: Final = list(shell_commands())


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_commands_exist(page: str, command: str) -> None:
    variables, words = words_of(command)
    for name in variables:
        if name.startswith("HALFSEC_") and "__" in name:
            assert name.removeprefix("HALFSEC_").lower().replace("__", ".") in settings()
    if not words or words[0] == ".":
        return
    name = Path(words[0]).name
    if name == "halfsec":
        check_halfsec(words[1:])
    elif name == "make":
        check_make(words[1:])
    elif "python" in name:
        assert words[1] == "-m"
        assert words[2] == "http.server" or find_spec(words[2].rstrip("."))
    else:
        assert name in OTHER_COMMANDS
    if name == "pip":
        extras = set(re.findall(r"\[(\w+)\]", command)) - {"realtime"}  # of openai
        assert extras <= set(PYPROJECT["project"]["optional-dependencies"])
    if name == "curl":
        (path,) = re.findall(r"localhost:8080(/[^'\" ]*)", command)
        assert path.partition("?")[0] in served()
        for body in re.findall(r"-d '(.*?)'", command, flags=re.DOTALL):
            json.loads(body)


def check_halfsec(words: list[str]) -> None:
    """The command, its subcommand and each flag exist; settings named by --set exist."""
    known = set(commands_page.commands())
    named = [tuple(words[:2]), tuple(words[:1])]
    if words[0] in ("--help", "--version"):
        return
    command = next((each for each in named if each in known), None)
    assert command, f"no command {words[:2]}"
    if command == ("bench",):
        assert words[1:] in ([], ["..."]), f"no bench {words[1]}"
    other = [word for word in words if command[-1:] == ("llm",) and word == "--speculation"]
    text = commands_page.help_of((*command, *other))  # it has options of its own
    for word in words:
        if re.fullmatch(r"--[a-z][a-z0-9-]*", word):
            assert re.search(rf"(?<![\w-]){word}(?![\w-])", text), f"{command} has no {word}"
    for before, assignment in pairwise(words):
        if before == "--set" and "=" in assignment:
            assert assignment.partition("=")[0] in settings()
    is_whole = words[-1] not in ("...", "--set") and words != ["keys", "add"]
    if command[0] in ("serve", "keys", "models", "doctor", "settings") and is_whole:
        build_parser().parse_args(words)


def check_make(words: list[str]) -> None:
    """Every target exists, and every variable is known."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        if "=" in word:
            assert re.search(rf"\b{word.partition('=')[0]}\b", makefile), word
        elif not word.isupper():
            assert re.search(rf"^{word}:", makefile, flags=re.MULTILINE), word


# Names in the text


@pytest.mark.parametrize("page", [path for path in PAGES if Path(path).name not in GENERATED])
def test_settings_and_paths_in_the_text_exist(page: str) -> None:
    sections = "agent|asr|llm_engine|tts|latency_budget|telephony|access"
    for code in inline(page):
        if found := re.match(rf"((?:{sections})\.\w+)( =|$)", code):
            package, _, name = found[1].partition(".")
            is_public = package in TYPED and name in importlib.import_module(package).__all__
            assert found[1] in settings() or is_public or find_spec(found[1]), code
        if re.match(r"/(v1|telephony|healthz|readyz|health|metrics|openapi|dashboard)\b", code):
            path = re.sub(r"\{.*?\}", "{}", code.partition("?")[0])
            is_example = "CARRIER" in code or code == "/v1/traces"  # a collector's
            assert is_example or path in served(), code


def test_the_first_page_is_short() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 150


# Generated pages


def test_generated_pages_are_not_written_by_hand() -> None:
    assert not [path for path in GENERATED if (ROOT / "docs" / path).exists()]
    assert {each.section for each in settings_page.settings()} >= {
        "agent", "asr", "llm_engine", "tts", "latency_budget", "telephony", "access",
        "agents.default", "mcp.NAME", "webhooks.NAME",
    }  # fmt: skip
    assert all(each.text and each.default for each in settings_page.settings())
    assert all("usage: halfsec" in commands_page.help_of(each) for each in commands_page.commands())
    for path in description()["paths"]:
        assert f" {path}\n" in SITE["reference/http.md"]


def test_every_event_and_close_code_is_described() -> None:
    assert set(events_page.CLIENT) == set(_READERS)
    assert set(events_page.SERVER) == set(events_page.server_events())
    webrtc = RealtimeProtocol(SessionSettings(), model="", holds_audio=True)
    notices = (OutputAudioStarted("r"), OutputAudioStopped("r"), OutputAudioCleared("r"))
    sent_by_webrtc = [json.loads(frame)["type"] for each in notices for frame in webrtc.send(each)]
    assert sent_by_webrtc == list(events_page.WEBRTC)
    folders = ("calls", "realtime", "session", "tools")
    files = [path for folder in folders for path in (ROOT / "agent" / folder).rglob("*.py")]
    files += (ROOT / "agent" / "observability").glob("live_*.py")
    sent = {
        name
        for path in files
        for name in re.findall(r'"(halfsec\.[a-z]+)"', path.read_text(encoding="utf-8"))
    }
    assert sent - {"halfsec.playback", "halfsec.principal"} == set(events_page.EXTENSIONS)
    codes = {
        value
        for name, value in vars(errors).items()
        if name.startswith("CLOSE_") and isinstance(value, int) and not isinstance(value, bool)
    }
    assert codes <= {code for code, _ in events_page.CLOSE_CODES}


def test_metrics_have_names_and_meanings() -> None:
    names = [family.name for family in metrics_page.families()]
    assert len(names) == len(set(names)) > 50
    rules = (ROOT / "latency_budget" / "monitoring" / "alerts.yml").read_text(encoding="utf-8")
    for name in set(re.findall(r"\bhalfsec_\w+", rules)):
        family = re.sub(r"_(total|bucket|sum|count)$", "", name)
        assert family in names or ":" in name, name


# Links


def anchors(text: str) -> set[str]:
    """Ids of a page's headings, as Python-Markdown makes them."""
    bare = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", bare, flags=re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_exist(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?<!`)`[^`]+`(?!`)", "", text)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    for target in targets:
        if re.match(r"https?://", target):
            assert not target.startswith("http://"), target
            continue
        path, _, anchor = target.partition("#")
        linked = str((Path("/") / Path(page).parent / path).resolve())[1:] if path else page
        is_picture = linked.startswith("docs/pictures/")
        if is_picture:
            linked = linked.replace("docs/", "web_demo/", 1)
        assert linked in PAGES or (ROOT / linked).is_file(), target
        if anchor:
            assert anchor in anchors(PAGES[linked]), target


def test_every_page_is_in_the_navigation() -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def named(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        else:
            for inner in node.values() if isinstance(node, dict) else node:
                yield from named(inner)

    pages = list(named(config["nav"]))
    assert len(pages) == len(set(pages))
    assert set(pages) == set(SITE)


def test_what_is_loaded_from_other_hosts_is_found() -> None:
    assert foreign('<script defer src="https://cdn.example/x.js"></script>')
    assert foreign('<link href="//fonts.example/x.css" rel="stylesheet">')
    assert foreign("<img alt=x src=https://example.org/x.png>")
    assert not foreign('<a href="https://example.org">x</a><script src="../x.js"></script>')
    assert not foreign('<link rel="canonical" href="https://example.org/">')
