"""The page against the real service with the real models: a conversation in a browser."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.callers.browser import recording_context
from tests.support.browser.pages import recording
from tests.support.models import model_path

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = [pytest.mark.browser, pytest.mark.models]

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad")

WARM_MS = 60_000
"""Until the page says Ready: models load in about ten seconds on two idle cores."""
ANSWER_MS = 60_000
"""Until something is said; only a hang takes that long."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(port: int) -> Iterator[str]:
    """Address of a `halfsec serve` of its own."""
    for name in MODELS:
        model_path(name)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "agent", "serve", "--port", str(port)),
            *("--set", "latency_budget.store=false", "--set", "agent.drain_s=0"),
            *("--set", "latency_budget.enforce=false", "--set", "latency_budget.admission=false"),
        ],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    while "listens" not in "".join(lines):
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    yield f"http://127.0.0.1:{port}/"
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 0, output


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with served(free_port()) as address:
        yield address


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, service: str) -> Iterator[Page]:
    """The page, ready to be used. With parameter True it records what it plays."""
    context = (
        recording_context(browser) if getattr(request, "param", False) else browser.new_context()
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(service)
    expect(page.locator("#server")).to_have_text("Ready", timeout=WARM_MS)
    yield page
    context.close()
    assert problems == []


def wait_for_answer(page: Page, count: int) -> None:
    turns = page.locator(".message.agent .turn:not(.live)")
    expect(turns).to_have_count(count, timeout=ANSWER_MS)


@pytest.mark.parametrize("page", [True], indirect=True, ids=["recorded"])
def test_a_spoken_question_is_answered_aloud(page: Page) -> None:
    page.get_by_role("button", name="Press and talk").click()
    expect(page.locator(".message.caller .sure").first).to_have_text(
        re.compile("cook for dinner", re.IGNORECASE), timeout=ANSWER_MS
    )
    wait_for_answer(page, 1)
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1, timeout=ANSWER_MS)
    turn = page.locator(".message.agent .turn:not(.live)")
    print("answer:", page.locator(".message.agent .words").first.text_content())
    print("latency:", turn.locator(".turn-headline").text_content())
    assert turn.locator(".turn-part").count() >= 2
    heard, rate_hz = recording(page)
    assert np.count_nonzero(np.abs(heard) > 0.01) > rate_hz // 4


def test_a_second_question_interrupts_the_first_answer(page: Page) -> None:
    sample = page.get_by_role("button", name="Play a sample question")
    sample.click()
    expect(page.locator("#phase")).to_contain_text("Speaking", timeout=ANSWER_MS)
    sample.click()
    expect(page.locator(".message.caller[data-state=done]")).to_have_count(2, timeout=ANSWER_MS)
    expect(page.locator(".message.agent").first).to_have_attribute("data-state", "cut")
    expect(page.locator(".message.agent").nth(1).locator(".turn")).to_be_visible(timeout=ANSWER_MS)


def test_a_written_question_is_answered(page: Page) -> None:
    page.get_by_label("Write to the agent").fill("What is the capital of France?")
    page.keyboard.press("Enter")
    expect(page.locator(".message.caller .sure")).to_have_text("What is the capital of France?")
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1, timeout=ANSWER_MS)
    expect(page.locator(".message.agent .sure")).to_contain_text("Paris")


def test_the_dashboard_tells_of_that_very_turn(page: Page, service: str) -> None:
    page.get_by_role("button", name="Play a sample question").click()
    wait_for_answer(page, 1)
    wait_ms = page.locator(".message.agent .turn").get_attribute("data-wait-ms")
    board = page.context.new_page()
    board.goto(f"{service}dashboard")
    expect(board.locator(".turns-body .turn-row .turn-wait").first).to_have_text(f"{wait_ms} ms")
    expect(board.locator("#live")).to_contain_text("default")


def test_a_call_goes_on_when_the_server_has_started_anew(browser: Browser) -> None:
    port = free_port()
    context = browser.new_context()
    with served(port) as address:
        page = context.new_page()
        page.goto(address)
        expect(page.locator("#server")).to_have_text("Ready", timeout=WARM_MS)
        page.get_by_label("Write to the agent").fill("Hello.")
        page.keyboard.press("Enter")
        expect(page.locator(".message.agent")).to_have_count(1, timeout=ANSWER_MS)
    expect(page.locator("#server")).to_have_text("Connection lost")
    with served(port):
        expect(page.locator("#server")).to_have_text("Connected", timeout=WARM_MS)
        page.get_by_label("Write to the agent").fill("What is the capital of France?")
        page.keyboard.press("Enter")
        expect(page.locator(".message.agent").last).to_contain_text("Paris", timeout=ANSWER_MS)
        context.close()
