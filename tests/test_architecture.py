"""Shape of the code: which folder imports which, what pure modules avoid, sizes of folders."""

import ast
import fnmatch
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LEAVES = {"engine_plugins", "languages", "latency_budget"}
"""Packages that import the standard library only."""

MAY_IMPORT = {
    "benchmarks": {"benchmarks", "agent", "asr", "llm_engine", "tts", *LEAVES},
    "agent": {"agent", "asr", "llm_engine", "tts", *LEAVES},
    "asr": {"asr", *LEAVES},
    "llm_engine": {"llm_engine", *LEAVES},
    "tts": {"tts", *LEAVES},
    "engine_plugins": {"engine_plugins"},
    "languages": {"languages"},
    "latency_budget": {"latency_budget"},
}

LAYERS = {
    "agent": (
        "errors cli/setup turn_taking/dialogue",
        "session/api",
        "codec config turn_taking",
        "realtime/protocol session/ports stages/model_store stages/stall_timeout "
        "stages/openai_tools telephony/carriers",
        "stages/tool_call_adapter",
        "stages/remote",
        "client observability session/context stages telephony/media",
        "http tools calls/state_store",
        "http/auth session/response",
        "client/simulated_caller http/hardening http/openai server/ray_metrics server/ray_options "
        "server/startup_checks session",
        "calls",
        "http/endpoints realtime telephony/outbound",
        "telephony webrtc",
        "server cli",
    ),
    "llm_engine": (
        "errors bench",
        "structured_output/grammar cuda/device torch_extra",
        "config",
        "checkpoints",
        "structured_output models",
        "backends",
        "cuda/kernels cuda/memory kv_cache",
        "cuda/ops",
        "cuda/model",
        "cuda/megakernel",
        "cuda/quantization",
        "cuda/steps",
        "cuda/backend",
        "cuda/tensor_parallel",
        "cuda/weights",
        "cuda/loading",
        "backends/factory",
        "speculative",
        "core",
        "chat/spoken_values",
        "chat",
        "engine",
        "chat/engine_chat_model",
        "chat/load",
        "training",
    ),
    "asr": ("errors", "audio", "speech_detection recognition", "load contract", "stream"),
    "tts": (
        "text trim resample onnx_session",
        "text_chunker loudness word_times",
        "voices",
        "voice",
        "load contract",
    ),
    "engine_plugins": ("reference", "discovery", "contract"),
    "latency_budget": (
        "account host",
        "statistics",
        "enforcement",
        "capacity storage",
        "reporting",
    ),
}
"""The contract of imports within a package, from the bottom up. A folder stands for the modules
that lie directly in it; it may import itself and what stands in a line above it."""

MAX_MODULES = 20
"""In one folder. 17 to 21 are the largest of livekit, unmute and speech-to-speech."""

MAX_ENTRIES = 17
"""Folders and modules at the top of a package."""

PURE = {
    "agent": "errors",
    "agent/calls": "recording_timeline rejections suspended",
    "agent/calls/state_store": "circuit_breaker memory store",
    "agent/client/simulated_caller": "ducking",
    "agent/codec": "*",
    "agent/config": (
        "access layers local_urls presets remote_models schema state_address tools values"
    ),
    "agent/http": "peer_address",
    "agent/http/auth": "client_secrets principal throttle",
    "agent/http/hardening": "address_limits leaky_bucket",
    "agent/http/openai": (
        "chat_request chat_response segments speech_request transcription_request "
        "transcription_response"
    ),
    "agent/observability": "agent_state event_codec spans",
    "agent/realtime": "resume_tokens",
    "agent/realtime/protocol": "*",
    "agent/server": "ray_metrics ray_options",
    "agent/session/api": "*",
    "agent/session/context": "chat_context",
    "agent/session/ports": "playback stage_ports",
    "agent/stages": "openai_tools",
    "agent/stages/remote": (
        "completion_chunks event_stream optional_fields pcm_reader recovery streamed_speech "
        "text_history transcription_session"
    ),
    "agent/telephony": "media_output media_session",
    "agent/telephony/carriers": "*",
    "agent/telephony/media": "dtmf dtmf_aggregator dtmf_redaction paced_sender reorder_buffer",
    "agent/tools": "api mcp_sanitize offered server_tool",
    "agent/turn_taking": "*",
    "asr": "errors",
    "asr/audio": "samples",
    "asr/recognition": "engine final_reuse recognizer repetition stabilizer transcripts word_times",
    "asr/speech_detection": "echo_gate end_of_turn endpointing",
    "asr/stream": "utterance",
    "benchmarks/asr": "scoring",
    "engine_plugins": "reference",
    "languages": "*",
    "latency_budget/account": (
        "actions budget critical_path ledger marks stage_spans turn turn_record"
    ),
    "latency_budget/capacity": "*",
    "latency_budget/enforcement": "*",
    "latency_budget/reporting": "replay waterfall",
    "latency_budget/statistics": "aggregate",
    "latency_budget/storage": "history postgres_url",
    "llm_engine": "config errors",
    "llm_engine/chat": "call_reader chat_model exchanges template thinking tool_calls",
    "llm_engine/chat/spoken_values": "*",
    "llm_engine/core": "output scheduler",
    "llm_engine/cuda": "memory",
    "llm_engine/kv_cache": "block_manager",
    "llm_engine/structured_output": "grammar",
    "tts": "text_chunker",
    "tts/text": "abbreviations dates localized markup normalize numbers quantities rule units",
}
"""Modules that do no I/O, start no task and read no clock, by folder; "*": all of them."""

IMPURE_PACKAGES = {
    "asyncio", "threading", "multiprocessing", "socket", "subprocess", "time", "torch",
    "ctranslate2", "onnxruntime", "faster_whisper", "transformers", "websockets", "starlette",
    "uvicorn", "httpx", "huggingface_hub", "opentelemetry", "requests", "psycopg", "sqlite3",
}  # fmt: skip
CLOCKS = {
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
    *("process_time", "process_time_ns"),
}
MAX_INHERITANCE_DEPTH = 2

SOURCES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))
PRODUCT = [path for path in SOURCES if path.relative_to(ROOT).parts[0] != "benchmarks"]


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of what a file imports, with lines; relative imports are resolved."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def pure_modules() -> list[Path]:
    paths: list[Path] = []
    for folder, names in PURE.items():
        wanted = [ROOT / folder / f"{name}.py" for name in names.split()]
        paths += sorted((ROOT / folder).glob("*.py")) if names == "*" else wanted
    return paths


def top(name: str) -> str:
    return name.partition(".")[0]


def clock_reads(tree: ast.Module) -> Iterator[int]:
    """Lines that call `time.monotonic` and its kin, or `datetime.now`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (owner == "time" and name in CLOCKS) or (
                owner in ("datetime", "date") and name in ("now", "utcnow", "today")
            ):
                yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (node.lineno for alias in node.names if alias.name in CLOCKS)


def module_files() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    files = {}
    for path in SOURCES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def layer_of(path: Path) -> tuple[str, int] | None:
    """Entry of `LAYERS` that a module belongs to, and its level; None: it may import everything."""
    package, *inner = path.relative_to(ROOT).with_suffix("").parts
    if package not in LAYERS or (len(inner) == 1 and inner[0].startswith("__")):
        return None
    for entry in ("/".join(inner), "/".join(inner[:-1])):
        for level, line in enumerate(LAYERS[package]):
            if entry in line.split():
                return entry, level
    raise AssertionError(f"{where(path, 1)} stands in no line of LAYERS")


def test_imports_point_down() -> None:
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in SOURCES
        for name, line in imported(path)
        if top(name) in MAY_IMPORT.keys() - MAY_IMPORT[path.relative_to(ROOT).parts[0]]
    ]
    assert not wrong


def test_the_leaves_import_only_the_standard_library() -> None:
    """But for the driver of PostgreSQL, in the module that is imported where one is used."""
    driver = ROOT / "latency_budget" / "storage" / "postgres_database.py"
    wrong = [
        f"{where(path, line)} imports {name}"
        for leaf in LEAVES
        for path in (ROOT / leaf).rglob("*.py")
        for name, line in imported(path)
        if top(name) not in sys.stdlib_module_names | {leaf}
        and not (path == driver and top(name) == "psycopg")
    ]
    assert not wrong


def test_pure_modules_touch_nothing() -> None:
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in pure_modules()
        for name, line in imported(path)
        if top(name) in IMPURE_PACKAGES
    ]
    assert not wrong


def test_folders_import_what_stands_below_them() -> None:
    files = module_files()
    wrong = []
    for path in PRODUCT:
        if path.name == "__init__.py" or (here := layer_of(path)) is None:
            continue
        package = path.relative_to(ROOT).parts[0]
        for name, line in imported(path):
            target = files.get(name)
            if target is None or top(name) != package or target.name == "__init__.py":
                continue
            there = layer_of(target)
            if there is None or (there[1] >= here[1] and there[0] != here[0]):
                wrong.append(f"{where(path, line)} imports {name}")
    assert not wrong


def test_modules_import_each_other_in_no_circle() -> None:
    files = module_files()
    imports = {
        name: {target for target, _ in imported(path) if target in files and target != name}
        for name, path in files.items()
        if path.name not in ("__init__.py", "__main__.py")
    }
    while leaves := [name for name, targets in imports.items() if not targets & imports.keys()]:
        for name in leaves:
            del imports[name]
    assert not imports


def test_product_code_imports_no_benchmark() -> None:
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in PRODUCT
        for name, line in imported(path)
        if top(name) == "benchmarks"
    ]
    assert not wrong


def test_folders_are_small_enough_to_be_read() -> None:
    sizes: defaultdict[str, int] = defaultdict(int)
    for path in SOURCES:
        if path.name != "__init__.py":
            sizes[str(path.parent.relative_to(ROOT))] += 1
    assert not {folder: size for folder, size in sizes.items() if size > MAX_MODULES}


def test_packages_show_few_entries() -> None:
    for package in MAY_IMPORT:
        entries = [
            path.name
            for path in (ROOT / package).iterdir()
            if path.name != "__init__.py" and (path.is_dir() or path.suffix == ".py")
            if path.name != "__pycache__"
        ]
        assert len(entries) <= MAX_ENTRIES, entries


def test_only_the_clock_module_reads_clocks() -> None:
    clock = ROOT / "latency_budget" / "account" / "clock.py"
    assert list(clock_reads(tree_of(clock))), "the check finds what it looks for"
    wrong = [
        where(path, line)
        for path in SOURCES
        if path != clock
        for line in clock_reads(tree_of(path))
    ]
    assert not wrong, "read clocks through latency_budget.account.clock"


def test_inheritance_is_shallow() -> None:
    """Our own classes below ours; what the standard library has above them is not ours to count."""
    ours: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
                ours[node.name] = [base for base in bases if base != node.name]

    def depth(name: str) -> int:
        return 1 + max((depth(base) for base in ours.get(name, ()) if base in ours), default=0)

    deep = {name: depth(name) for name in ours if depth(name) > MAX_INHERITANCE_DEPTH}
    assert not deep


def test_the_lists_above_name_what_exists() -> None:
    for package, lines in LAYERS.items():
        for entry in " ".join(lines).split():
            path = ROOT / package / entry
            assert path.is_dir() or path.with_suffix(".py").exists(), entry
    missing = [str(path.relative_to(ROOT)) for path in pure_modules() if not path.exists()]
    assert not missing


def test_the_architecture_page_names_what_exists() -> None:
    """In backticks and in the drawings: paths of folders and modules."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tops = (*MAY_IMPORT, "web_demo", "docs", "examples", "tests")
    drawings = "".join(text.split("```")[1::2])
    named = {
        name
        for name in re.findall(r"`([\w./]+)`", text)
        if name.rstrip("/").partition("/")[0] in tops
    }
    drawn = {
        each
        for name in re.findall(rf"\b(?:{'|'.join(tops)})/[\w./{{}},]*[\w}}]", drawings)
        for each in expanded(name)
    }
    assert len(drawn) > 20
    named |= {
        name if (ROOT / name).is_dir() else f"{name.removesuffix('.py')}.py" for name in drawn
    }
    assert len(named) > 80
    assert not sorted(name for name in named if not (ROOT / name).exists())


def readmes() -> list[Path]:
    """Those of folders."""
    return [
        path
        for top in (*MAY_IMPORT, "web_demo", "examples", "tests")
        for path in (ROOT / top).rglob("README.md")
        if "node_modules" not in path.parts
    ]


def test_the_readmes_of_folders_name_what_exists() -> None:
    """In backticks: paths from the root."""
    pages = readmes()
    assert len(pages) > 40
    tops = "|".join((*MAY_IMPORT, "web_demo", "docs", "examples", "tests"))
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in re.findall(rf"`((?:{tops})/[\w./]+)`", page.read_text(encoding="utf-8"))
        if not ((ROOT / name).exists() or (ROOT / f"{name}.py").exists())
    ]
    assert not missing


def expanded(name: str) -> list[str]:
    """As a shell does: `a_{b,c}.py` is two names. One pair of braces at most."""
    before, brace, rest = name.partition("{")
    inner, _, behind = rest.partition("}")
    return [f"{before}{each}{behind}" for each in inner.split(",")] if brace else [name]


def test_the_readmes_of_folders_name_modules_that_exist() -> None:
    """In backticks: files without their folder, like `test_{whisper,log_mel}.py`; and the names in
    the first column of a table of modules."""
    tops = (*MAY_IMPORT, "docs", "examples", "tests")
    files = {path.name for top in tops for path in (ROOT / top).rglob("*.py")}
    missing: list[tuple[Path, str]] = []
    num_named = 0
    for page in readmes():
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`([\w{},*]+\.py)`", text):
            num_named += 1
            missing += [(page, each) for each in expanded(name) if not fnmatch.filter(files, each)]
        for rows in re.findall(r"^\| modules? \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.MULTILINE):
            first_cells = "".join(row.split("|")[1] for row in rows.splitlines())
            for name in re.findall(r"`([\w/]+)`", first_cells):
                num_named += 1
                path = page.parent / name
                if not (path.is_dir() or path.with_suffix(".py").exists()):
                    missing.append((page, name))
    assert num_named > 500
    assert not missing
