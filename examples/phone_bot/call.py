"""Call the phone bot as Twilio does, without a carrier, and save what a caller would hear.

    pip install 'streamdouble>=0.3,<0.4'
    python call.py question.wav heard.wav

`streamdouble` plays the carrier's end of a media stream: it paces 20 ms frames of mu-law, returns
marks when their audio has been played, and checks every frame that the server sends.
"""

import argparse
import asyncio
from pathlib import Path

from streamdouble import api, audio
from streamdouble.chaos import Impairments
from streamdouble.scenario import Say, Scenario, Wait, WaitFor
from streamdouble.session import SessionConfig


def conversation(question: Path) -> Scenario:
    """Let the greeting end, ask, and stay on the line until the answer has been heard."""
    return Scenario(
        "ask once",
        [
            WaitFor("audio", timeout_s=30.0),
            WaitFor("quiet", timeout_s=30.0),
            Say(question, audio.wav_to_ulaw_frames(question)),
            Wait(6.0),  # the simulator can't wait for a second answer: it must have begun by then
            WaitFor("quiet", timeout_s=30.0),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", type=Path, help="a WAV file of any rate")
    parser.add_argument("heard", type=Path)
    parser.add_argument("--url", default="ws://localhost:8080/telephony/twilio/stream")
    parser.add_argument("--agent", default="hotel", help="a name of [agents.NAME]")
    parser.add_argument("--loss", type=float, default=0.0, help="share of lost frames, 0..1")
    options = parser.parse_args()
    config = SessionConfig(
        response_timeout_s=60.0,
        custom_parameters={"agent": options.agent},
        impairments=Impairments(loss=options.loss),
    )
    scenario = conversation(options.question)
    report = asyncio.run(api.run_scenario(options.url, scenario, config=config))
    for violation in report.violations:
        print("violation:", violation)
    if not api.save_reply(report, options.heard):
        print("The agent said nothing.")
        return 1
    seconds = len(report.audio_received) / 8000
    print(f"{seconds:.1f} s of speech in {options.heard}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
