"""`halfsec bench`: table of the benchmarks and their modules."""

import importlib
import sys
from collections.abc import Sequence
from typing import Final

BENCHES: Final[dict[str, tuple[str, str]]] = {
    "voice": (
        "benchmarks.voice.conversations",
        "voice to voice at the caller's ear, over recordings",
    ),
    "phone": ("benchmarks.voice.phone", "telephone calls over good lines and bad ones"),
    "webrtc": (
        "benchmarks.voice.webrtc",
        "calls by WebRTC, on lines that lose packets too, beside the WebSocket",
    ),
    "turns": ("benchmarks.voice.turns", "answers over many turns: how soon, how often too soon"),
    "noise": (
        "benchmarks.voice.noise_table",
        "the end of the turn in noise, in a room and over a telephone line",
    ),
    "cutins": (
        "benchmarks.voice.cut_in_account",
        "the account of cut-ins, against calls whose turns are known",
    ),
    "overlaps": (
        "benchmarks.overlaps.command",
        "what is said over the agent: backchannels keep the reply, interruptions stop it",
    ),
    "clause": (
        "benchmarks.voice.opening_clause",
        "how soon a reply can be spoken, with a first clause or not",
    ),
    "abuse": ("benchmarks.voice.abuse", "what a caller notices while others attack the server"),
    "soak": ("benchmarks.soak.command", "whether anything grows, with callers for hours"),
    "faults": ("benchmarks.faults.command", "what a caller hears and loses when a part fails"),
    "web": (
        "benchmarks.voice.web",
        "the pages in a real browser: what is heard, and what they tell",
    ),
    "quiet": ("benchmarks.voice.false_triggers", "what is answered of silence, noise and music"),
    "asr": ("benchmarks.asr.command", "word error rate and time of the speech recognizer"),
    "tts": (
        "benchmarks.tts.voices",
        "the voices: speed, first sound, and what a listener understands",
    ),
    "languages": (
        "benchmarks.languages.round_trip",
        "German, Spanish and French: what the recognizer hears of the voice",
    ),
    "chat": ("benchmarks.chat.command", "dialogues: are the answers right, and acted upon"),
    "long": (
        "benchmarks.chat.long_call",
        "a call longer than the context: first tokens, and what is still known",
    ),
    "quality": ("benchmarks.llm.quality", "what calculating in 8 bits costs the language model"),
    "llm": (
        "benchmarks.llm.__main__",
        "the language model, beside llama.cpp and CTranslate2",
    ),
}


_NEEDS: Final = """\
DIR is a folder of recordings, a turn each: tests/recordings of a checkout, or your own. What some
need besides: pip install 'halfsec[bench]' (torch, llama.cpp, jiwer), 'halfsec[dev]' (a browser)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark with the rest of the command line. Returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in BENCHES:
        return int(importlib.import_module(BENCHES[arguments[0]][0]).main(arguments[1:]))
    wanted = not arguments or arguments[0] in ("-h", "--help")
    out = sys.stdout if wanted else sys.stderr
    if not wanted:
        print(f"There is no bench {arguments[0]!r}.", file=out)
    print("usage: halfsec bench NAME ... (halfsec bench NAME --help says more)\n", file=out)
    for name, (_, what) in BENCHES.items():
        print(f"  {name:<9} {what}", file=out)
    print(f"\n{_NEEDS}", file=out)
    return 0 if wanted else 2


if __name__ == "__main__":
    sys.exit(main())
