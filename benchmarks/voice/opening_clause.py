"""`halfsec bench clause`: time to speakable text, with and without an opening clause.

The language model and the voice that the settings name answer typed questions, each in a new
conversation whose prompt and question are prefilled, as they are when a caller's words have just
been recognized. Measured is what that caller waits for: the model's steps until the first piece is
cut, and the first audible sample. Each question is answered with and without the
opening clause, in alternating order, so that other load on the machine falls on both alike.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import llm_engine
from agent.cli.settings_arguments import add_arguments, flags_of
from agent.client.simulated_caller.summary import percentiles_ms
from agent.config.schema import AgentProfile, Config
from agent.config.sources import read_config
from agent.session.api.server_events import Notice, ReplyText
from agent.session.api.settings import WIRE_RATE_HZ, ResponseOptions, SessionSettings
from agent.session.ports.playback import Playback
from agent.session.ports.stage_ports import ChatMessage, OnMark, ReplyToken, Tools
from agent.session.response.opening_clause import cutting, example_messages, shaped
from agent.session.response.response import Reply
from agent.session.response.task import ResponseCallbacks, ResponseTask
from agent.stages.llm_chat import EngineChat
from agent.stages.load_progress import Conversion
from agent.stages.loading import Loading
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.model_thread import ModelThread
from agent.stages.registry import sampling_of
from agent.stages.speech_output import VoiceStage, VoiceStream
from latency_budget.account.clock import Deadline, SystemClock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from latency_budget.host import machine

from .options import positive
from .report import in_ms, save

QUESTIONS: Final = (
    "What should I cook for dinner tonight?",
    "How do I get a stain out of a shirt?",
    "Why is the sky blue?",
    "What is the capital of France?",
    "Can you help me plan a weekend trip?",
    "I can't sleep at night. What can I do?",
    "How many hours should I sleep?",
    "Tell me a fun fact about cats.",
    "What is a good name for a dog?",
    "How do I boil an egg?",
    "My phone is very slow. What should I do?",
    "What do bees do?",
    "Is it going to rain tomorrow?",
    "Do you like music?",
    "I have a job interview tomorrow.",
    "How far away is the moon?",
    "What is the best way to learn a language?",
    "Should I drink coffee in the evening?",
    "What can I do on a rainy day?",
    "How do plants grow?",
    "I lost my keys.",
    "What is your name?",
    "Could you recommend a book?",
    "How do I write a thank you note?",
    "Why do we dream?",
    "What time do shops usually open?",
    "I feel very tired today.",
    "How can I save money?",
    "What is the largest animal in the world?",
    "Can you explain what inflation is?",
    "How long does it take to bake bread?",
    "What should I wear to a wedding?",
    "My back hurts after work.",
    "Who wrote Romeo and Juliet?",
    "How do I make my room warmer?",
    "What is a healthy breakfast?",
    "I want to start running.",
    "How do I say hello in Spanish?",
    "Is it safe to swim after eating?",
    "What makes a good friend?",
)
"""Questions of callers: facts, advice, small talk; none of them is in a preset's examples."""

WAYS: Final = {"whole": True, "without first-clause": False}
"""Settings under comparison, by name: True with an opening clause."""
AT_ONCE_MS: Final = 600_000
"""Lead in ms of a playback that never waits."""


@dataclass(slots=True)
class TimedAnswer:
    """Answer to one question, with its times."""

    question: str
    text: str = ""
    first_piece: str = ""
    num_steps: int = 0
    """Steps of the model until the first piece was cut; with drafts fewer than its tokens."""
    first_piece_ms: float | None = None
    """Time in ms from the request; None for an answer without words."""
    first_audible_ms: float | None = None


class _CountingChat(EngineChat):
    """Chat that counts the steps of its reply."""

    num_steps = 0

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        tokens = super().generate(
            turn, deadline_ns=deadline_ns, max_tokens=max_tokens, on_mark=on_mark, tools=tools
        )
        async with aclosing(tokens):
            async for token in tokens:
                self.num_steps += 1
                yield token


class Examiner:
    """Model and voice under test. Order of calls: `open`, `ask`..., `close`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = SystemClock()
        conversion = Conversion(config.llm_engine.model, self._clock)
        load = Loading(config, ModelStore(), self._clock, conversion)
        self._llm: ModelThread[llm_engine.Engine] = ModelThread(
            "llm", load.engine, llm_engine.Engine.close
        )
        self._voice = VoiceStage(config.tts.voice, load.voice(config.tts.voice))

    async def open(self) -> None:
        """Load the models, and answer once with each setting so that all prompts are computed."""
        await self._llm.start()
        await self._voice.start()
        for by_clause in WAYS.values():
            await self.ask(QUESTIONS[0], by_clause=by_clause)

    async def close(self) -> None:
        await self._llm.close()
        await self._voice.thread.close()

    async def ask(self, question: str, *, by_clause: bool) -> TimedAnswer:
        """Ask one question in a new conversation. Raises StageError."""
        answer, clock = TimedAnswer(question), self._clock
        _, profile = self._config.profile(None)
        profile = shaped(profile, by_clause=by_clause)
        chat = self._open_chat(profile)
        await chat.commit(ChatMessage("user", question))
        await chat.preview("")
        rate_hz = WIRE_RATE_HZ["pcm16"]
        reply = Reply(
            TurnId(1),
            SessionSettings(),
            ResponseOptions(),
            Playback(rate_hz, AT_ONCE_MS),
            Deadline.after_ms(self._config.latency_budget.total_ms, now_ns=clock.now_ns()),
        )
        began_ns = clock.now_ns()

        def mark(reply: Reply, name: MarkName, at_ns: int) -> None:
            since_ms = (at_ns - began_ns) / 1e6
            if name is MarkName.FIRST_PIECE:
                answer.num_steps, answer.first_piece_ms = chat.num_steps, since_ms
            elif name is MarkName.FIRST_AUDIBLE_READY:
                answer.first_audible_ms = since_ms

        def notify(notice: Notice) -> None:
            if isinstance(notice, ReplyText) and not answer.first_piece:
                answer.first_piece = notice.delta.strip()

        shape = cutting(by_clause=by_clause)
        speaking = VoiceStream(self._voice, rate_hz)
        callbacks = ResponseCallbacks(notify, mark, audible=lambda run: run.release())
        run = ResponseTask(reply, speaking, clock, callbacks, chunking=lambda: shape)
        run.announced.set()
        await run.run(chat)
        await chat.close()
        answer.text = reply.text
        return answer

    def _open_chat(self, profile: AgentProfile) -> _CountingChat:
        sampling = sampling_of(self._config.llm_engine)
        examples = example_messages(profile)
        return _CountingChat(self._llm, self._clock, sampling, profile.instructions, examples)


async def measure(config: Config, questions: Sequence[str]) -> dict[str, list[TimedAnswer]]:
    """Ask all questions with each setting."""
    examiner = Examiner(config)
    answers: dict[str, list[TimedAnswer]] = {name: [] for name in WAYS}
    await examiner.open()
    order = list(WAYS)
    for question in questions:
        for name in order:
            answers[name].append(await examiner.ask(question, by_clause=WAYS[name]))
        order.append(order.pop(0))
    await examiner.close()
    return answers


def figures_of(answers: Sequence[TimedAnswer]) -> dict[str, Any]:
    """Steps, characters and ms until an answer can be heard, and its length."""
    steps = [answer.num_steps for answer in answers]
    return {
        "answers": len(answers),
        "steps": {"mean": statistics.mean(steps), "median": statistics.median(steps)},
        "first_piece_chars": statistics.median(len(answer.first_piece) for answer in answers),
        "first_piece_ms": percentiles_ms(answer.first_piece_ms for answer in answers),
        "first_audible_ms": percentiles_ms(answer.first_audible_ms for answer in answers),
        "reply_chars": statistics.mean(len(answer.text) for answer in answers),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0."""
    options = _parser().parse_args(argv)
    config = read_config(flags_of(options), options.config)
    questions = QUESTIONS[: options.questions]
    answers = asyncio.run(measure(config, questions))
    result = {
        "bench": "clause",
        "machine": machine(),
        "model": config.llm_engine.model,
        "ways": {name: figures_of(found) for name, found in answers.items()},
        "answers": {name: [asdict(each) for each in found] for name, found in answers.items()},
    }
    _show(result, with_answers=options.show)
    save(result, options.json)
    return 0


def _show(result: dict[str, Any], *, with_answers: bool) -> None:
    if with_answers:
        for name, answers in result["answers"].items():
            print(f"\n{name}")
            for answer in answers:
                print(f"  {answer['question']}\n    {answer['text']!r}")
    print(f"\n{result['machine']}, {result['model']}\n")
    print(f"{'':<24}{'steps':>7}{'(mean)':>8}{'chars':>7}{'piece ms':>10}{'p95':>6}", end="")
    print(f"{'sound ms':>10}{'p95':>6}{'reply chars':>13}")
    for name, figures in result["ways"].items():
        steps, piece, sound = (
            figures[key] for key in ("steps", "first_piece_ms", "first_audible_ms")
        )
        print(
            f"{name:<24}{steps['median']:>7.0f}{steps['mean']:>8.1f}"
            f"{figures['first_piece_chars']:>7.0f}{in_ms(piece['p50']):>10}{in_ms(piece['p95']):>6}"
            f"{in_ms(sound['p50']):>10}{in_ms(sound['p95']):>6}{figures['reply_chars']:>13.0f}"
        )
    print("\nuntil the first piece was cut and its first sample could be heard; medians")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench clause",
        description="Ask the language model everyday questions, and measure how soon its answers "
        "can be spoken: as the service speaks them, and a sentence at a time.",
        epilog="example: halfsec bench clause --questions 10 --show",
    )
    add_arguments(parser)
    parser.add_argument(
        "--questions",
        type=positive,
        default=len(QUESTIONS),
        help="number of questions (%(default)s)",
    )
    parser.add_argument("--show", action="store_true", help="print the answers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
