"""Prompts and dialogues: the same token ids for every contestant."""

from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

from llm_engine.chat.template import ChatMessage, ChatTemplate
from llm_engine.checkpoints.tokenizer import Tokenizer

from .contestant import CallerMessage
from .quality import LICENCE, NUM_TOKENS

SYSTEM: Final = "You are a friendly voice assistant. Answer in one or two short sentences."

QUESTIONS: Final = (
    "What would you cook for four friends on a rainy evening in autumn?",
    "Could you tell me how long it takes to get a passport renewed?",
    "My neighbour plays the drums at night; how should I talk to him?",
    "Which of the planets would you like to visit, and for what reason?",
    "How do I keep the tomatoes on my balcony alive while I am away?",
    "Is it better to learn the piano as a child or as a grown person?",
    "What do I need to know before I buy a bicycle that is not new?",
    "Why do so many people like to walk by the sea early in the day?",
    "Please explain to my grandmother what a podcast is, in a kind way.",
    "What is a good name for a small and rather lazy dog with long ears?",
)
"""Questions of about 15 tokens each: from turn to turn only the history grows."""

READ_BACK: Final = (
    "Repeat this sentence exactly: The train to Edinburgh leaves from platform nine at half past "
    "six in the morning and arrives at a quarter to eleven.",
    "Repeat this sentence exactly: Margaret Holloway would like to move her appointment from "
    "Thursday the twelfth of March to the following Monday.",
    "Repeat this sentence exactly: The order is two large pizzas with ham and mushrooms, one green "
    "salad, and three bottles of sparkling water.",
)
"""Requests whose reply repeats the caller's words, which n-gram drafts are made for."""

PASSAGE: Final = (
    "The harbour was quiet when the ferry came in, and only two men stood on the quay to take its "
    "ropes. One of them had worked there for thirty years and knew every captain by name. He liked "
    "to tell how, in the winter of the great storm, the waves had carried a fishing boat over the "
    "wall and into the market square, where it stayed until spring because nobody could agree on "
    "who should pay for moving it. Children played in it, a baker sold bread from its deck, and "
    "when it was launched again at last, half of the town wept. "
)
"""Text that is repeated for long prompts: their time does not depend on the content."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts as token ids."""

    turns: tuple[CallerMessage, ...]
    """Dialogue of ten turns."""
    talk: tuple[tuple[int, ...], ...]
    """Prompt of each question alone."""
    read_back: tuple[tuple[int, ...], ...]
    """Prompt of each of `READ_BACK` alone."""
    short: tuple[int, ...]
    """Prompt of 36 tokens: as long as a system prompt and a question."""
    long: tuple[int, ...]
    """Prompt of 512 tokens."""
    text: tuple[int, ...]
    """Text that perplexity is measured on; empty if the file is missing."""


def make_script(template: ChatTemplate, tokenizer: Tokenizer) -> Workload:
    """Make the token ids with the model's chat template."""
    text = LICENCE.read_text(encoding="utf-8") if LICENCE.exists() else ""
    passage = template.content("user", PASSAGE, template.gaps(["user"])[0])
    return Workload(
        turns=tuple(_turn(template, number) for number in range(len(QUESTIONS))),
        talk=tuple(asked(template, question) for question in QUESTIONS),
        read_back=tuple(asked(template, request) for request in READ_BACK),
        short=tuple(islice(cycle(passage), 36)),
        long=tuple(islice(cycle(passage), 512)),
        text=tuple(tokenizer.encode(text)[: NUM_TOKENS + 1]),
    )


def asked(template: ChatTemplate, question: str) -> tuple[int, ...]:
    """Prompt of one question alone, behind the system prompt."""
    messages = [ChatMessage("system", SYSTEM), ChatMessage("user", question)]
    ids: list[int] = []
    gaps = template.gaps([message.role for message in messages])
    for message, gap in zip(messages, gaps, strict=False):
        ids += [*gap.token_ids, *template.content(message.role, message.text, gap)]
    return (*ids, *gaps[-1].token_ids)


def _turn(template: ChatTemplate, number: int) -> CallerMessage:
    question = QUESTIONS[number]
    if number == 0:
        return CallerMessage(question, asked(template, question))
    *_, before, after = template.gaps(["system", "user", "assistant", "user"])
    content = template.content("user", question, before)
    return CallerMessage(question, (*before.token_ids, *content, *after.token_ids))
