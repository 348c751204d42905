"""The shape of the code: who imports whom, what pure modules leave alone, how long things get."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT = {
    "agent": {"agent", "asr", "llm_engine", "tts", "latency_budget"},
    "asr": {"asr", "latency_budget"},
    "llm_engine": {"llm_engine", "latency_budget"},
    "tts": {"tts", "latency_budget"},
    "latency_budget": {"latency_budget"},
}
PURE = {
    "agent": (
        "tools tool_settings served_tool toolbox mcp_texts "
        "address config config_layers config_values presets errors settings requests notices "
        "conversation events commands turn_taking turn_tables turn_state turn_coupling "
        "turn_of_agent turn_of_caller turn_of_client barge_in backchannel reopening watchdogs "
        "idling guessing end_of_turn playback ducking records identifiers chat_context ports "
        "turn_score turn_spans access_settings principal client_secrets wrong_keys passages pace "
        "addresses address_limits resume_tokens waiting_calls "
        "transcription_request transcription_answers speech_request "
        "call_timeline call_state refusals phone_line phone_output frame_order paced_queue keypad "
        "key_tones quiet_keys"
    ),
    "asr": (
        "audio early offset endpointing far_end stabilizer transcripts repetition utterance "
        "scoring errors word_times"
    ),
    "llm_engine": (
        "config grammar sequence pages scheduler template detokenizer stops errors tool_calls "
        "call_reader openai_api openai_tools openai_answers cuda/memory"
    ),
    "tts": "speakable normalize numbers dates quantities rules markup units abbreviations",
    "latency_budget": (
        "turn deadline budget ledger stage_spans marks critical_path record tally history "
        "waterfall actions lags recent rung policy admission replay"
    ),
}
IMPURE_PACKAGES = {
    "asyncio", "threading", "multiprocessing", "socket", "subprocess", "time", "torch",
    "ctranslate2", "onnxruntime", "faster_whisper", "transformers", "websockets", "starlette",
    "uvicorn", "httpx", "huggingface_hub", "opentelemetry", "requests",
}  # fmt: skip
CLOCKS = {
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
    *("process_time", "process_time_ns"),
}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CLASS_METHODS = 15
MAX_INHERITANCE_DEPTH = 2

SOURCES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))
ALL_FILES = SOURCES + sorted((ROOT / "tests").rglob("*.py"))


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
    paths = (
        ROOT / package / f"{name}.py" for package, names in PURE.items() for name in names.split()
    )
    wire = (ROOT / "agent" / "wire").rglob("*.py")
    return sorted(path for path in (*paths, *wire) if path.exists())


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


def too_big(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Functions and classes beyond the limits, with what they have."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, functions):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {num_lines} lines"
        if isinstance(node, ast.ClassDef):
            num_methods = sum(isinstance(item, functions) for item in node.body)
            if num_methods > MAX_CLASS_METHODS:
                yield node.lineno, f"{node.name} has {num_methods} methods"


def test_imports_point_down() -> None:
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in SOURCES
        for name, line in imported(path)
        if top(name) in MAY_IMPORT.keys() - MAY_IMPORT[path.relative_to(ROOT).parts[0]]
    ]
    assert not wrong


def test_the_leaf_imports_only_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"latency_budget"}
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in (ROOT / "latency_budget").rglob("*.py")
        for name, line in imported(path)
        if top(name) not in allowed
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


def test_only_the_clock_module_reads_clocks() -> None:
    clock = ROOT / "latency_budget" / "clock.py"
    assert list(clock_reads(tree_of(clock))), "the check finds what it looks for"
    wrong = [
        where(path, line)
        for path in SOURCES
        if path != clock
        for line in clock_reads(tree_of(path))
    ]
    assert not wrong, "read clocks through latency_budget.clock"


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_FILES}
    assert not {
        str(path.relative_to(ROOT)): num_lines
        for path, num_lines in lengths.items()
        if num_lines > MAX_FILE_LINES
    }


def test_functions_and_classes_are_small() -> None:
    sample = "def long():\n" + "    pass\n" * MAX_FUNCTION_LINES
    assert list(too_big(ast.parse(sample))), "the check finds what it looks for"
    wrong = [
        f"{where(path, line)} {what}" for path in ALL_FILES for line, what in too_big(tree_of(path))
    ]
    assert not wrong


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


def test_the_lists_above_name_folders_that_exist() -> None:
    assert all((ROOT / package / "__init__.py").exists() for package in MAY_IMPORT)
    for package, names in PURE.items():
        assert any((ROOT / package / f"{name}.py").exists() for name in names.split()), package
