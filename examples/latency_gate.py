"""Gate for CI: say recordings to a server, exit 1 when it answers too late or cuts callers off.

    pip install halfsec-0.1.0-py3-none-any.whl   # docs/start/five-minutes.md makes it
    python latency_gate.py recordings/*.wav --p95-ms 800

A simulated caller speaks each recording in real time and hears the answer as a loudspeaker plays
it. Latency is what the caller waits: from the last voiced sound to the first audible one.
`halfsec bench turns DIR --gate-p95 800` does the same with far more options.
"""

import argparse
import asyncio
from pathlib import Path

from agent.client.simulated_caller.caller import load_recording
from agent.client.simulated_caller.summary import summarize_exchanges
from agent.client.simulated_caller.talk import hold_call


async def run(url: str, recordings: list[Path], rounds: int, p95_ms: float) -> list[str]:
    """Return what is wrong; empty when the gate is passed."""
    loaded = [load_recording(path) for path in recordings]
    await hold_call(loaded[:1], url, wait_s=120.0)  # not measured: it waits for a warm server
    calls = [await hold_call(loaded, url) for _ in range(rounds)]
    turns = [turn for call in calls for turn in call.exchanges]
    for turn in turns:
        waited = "no answer" if turn.e2e_ear_ms is None else f"{turn.e2e_ear_ms:5.0f} ms"
        print(f"{waited}  {turn.caller_text!r} -> {turn.agent_text!r}")
    summary = summarize_exchanges(turns)
    print(f"p50 {summary['p50']} ms, p95 {summary['p95']} ms, cut in {summary['cut_in_rate']:.0%}")
    wrong = [error for call in calls for error in call.errors]
    if summary["answered"] < summary["turns"]:
        wrong.append(f"{summary['turns'] - summary['answered']} turns were not answered")
    if summary["p95"] is not None and summary["p95"] > p95_ms:
        wrong.append(f"p95 is {summary['p95']:.0f} ms, the budget {p95_ms:.0f} ms")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", nargs="+", type=Path)
    parser.add_argument("--url", default="ws://localhost:8080")
    parser.add_argument("--p95-ms", type=float, default=800.0)
    parser.add_argument("--rounds", type=int, default=3, help="calls with all recordings each")
    options = parser.parse_args()
    wrong = asyncio.run(run(options.url, options.recordings, options.rounds, options.p95_ms))
    for reason in wrong:
        print("FAILED:", reason)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
