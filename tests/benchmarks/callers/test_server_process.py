"""A server started for a measurement ends with it, however that ends."""

import asyncio
import os
import signal
import sys

import pytest

from benchmarks.callers.server_process import own_server
from tests.support.models import model_path
from tests.support.service.service_process import PATIENCE_S, ROOT

pytestmark = pytest.mark.slow

MEASUREMENT = """
import asyncio
from benchmarks.callers.server_process import own_server

async def call():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(1000))

with own_server([]) as server:
    print(server.pid, flush=True)
    asyncio.run(call())
"""


@pytest.mark.models
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_no_server_outlives_a_measurement_that_is_told_to_end(number: signal.Signals) -> None:
    for name in ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad"):
        model_path(name)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MEASUREMENT),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            pid = int(await process.stdout.readline())
            os.kill(pid, 0)  # it runs
            process.send_signal(number)
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 128 + number, errors.decode()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.models
def test_signals_are_as_before_behind_it() -> None:
    for name in ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad"):
        model_path(name)
    before = signal.getsignal(signal.SIGTERM)
    with own_server([]):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
