"""Thoughts are told from words, however the text comes, and are no part of the history."""

import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Bpe

from agent.http.openai.chat_request import parse_chat_request
from agent.stages.openai_tools import parse_tools
from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from llm_engine.chat.conversation import Conversation
from llm_engine.chat.template import ChatMessage
from llm_engine.chat.thinking import Piece, ThoughtReader, WordIds
from llm_engine.chat.tool_calls import ToolUse
from llm_engine.checkpoints.huggingface_tokenizer import load_tokenizer
from llm_engine.checkpoints.tokenizer import Tokenizer
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.core.output import FinishReason, TokenChunk
from llm_engine.engine import Engine, read_vocabulary
from tests.support.fakes import chat_templates
from tests.support.fakes.llm_models import CHATML, ScriptedBackend, save_tiny_model

END = 2
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "<think>UTC</think>"}}\n</tool_call>'


def kinds(
    pieces: Sequence[str], *, is_open: bool = False, calls: str | None = None
) -> list[tuple[str, str]]:
    """Each character and its kind."""
    reader = ThoughtReader(is_open=is_open, calls=calls)
    read = [piece for text in pieces for piece in reader.push(text)]
    return [(each, piece.kind) for piece in [*read, *reader.flush()] for each in piece.text]


def words_of(text: str) -> str:
    return "".join(each for each, kind in kinds([text]) if kind == "words")


FORMS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "no thought": ("Hello <b>there</b>.", {}, "Hello <b>there</b>.", ""),
    "before the words": ("<think>\nHm.\n</think>\n\nHi!", {}, "Hi!", "Hm."),
    "behind white space": ("\n <think>Hm.</think> Hi!", {}, "Hi!", "Hm."),
    "empty": ("<think>\n\n</think>\n\nHi!", {}, "Hi!", ""),
    "between words": ("One. <think>Hm.</think> Two.", {}, "One. Two.", "Hm."),
    "two": ("<think>a</think><think>b</think>Hi!", {}, "Hi!", "ab"),
    "never closed": ("<think>So, the caller", {}, "", "So, the caller"),
    "closing tag broken off": ("<think>So </thi", {}, "", "So </thi"),
    "only a thought": ("<think>So.</think>\n", {}, "", "So."),
    "opened in the prompt": ("Hm.\n</think>\n\nHi!", {"is_open": True}, "Hi!", "Hm."),
    "opened in the prompt, and again": ("<think>Hm.</think>Hi!", {"is_open": True}, "Hi!", "Hm."),
    "opened in the prompt, never closed": ("So, the", {"is_open": True}, "", "So, the"),
    "closed once too often": ("Hi!</think> Bye.", {}, "Hi!Bye.", ""),
    "Magistral": ("[THINK]Hm.[/THINK]Hi!", {}, "Hi!", "Hm."),
    "tag broken off": ("Is 2 <thi", {}, "Is 2 <thi", ""),
    "call": (CALL, {"calls": "<tool_call>"}, CALL, ""),
    "bare call": ('{"name": "<think>"}', {"calls": "<tool_call>"}, '{"name": "<think>"}', ""),
    "call behind a thought": ("<think>a</think>\n" + CALL, {"calls": "<tool_call>"}, CALL, "a"),
    "call within a thought": ("<think>a\n" + CALL, {"calls": "<tool_call>"}, CALL, "a"),
    "whole call": ('{"name": "<think>"}', {"calls": ""}, '{"name": "<think>"}', ""),
    "no tools": ("<think>a <tool_call> b</think>Hi!", {}, "Hi!", "a <tool_call> b"),
}


@pytest.mark.parametrize("form", FORMS)
def test_words_and_thoughts(form: str) -> None:
    text, settings, words, thought = FORMS[form]
    found = kinds([text], **settings)
    assert "".join(each for each, kind in found if kind == "words") == words
    assert "".join(each for each, kind in found if kind == "thought") == thought


TEXTS = st.lists(
    st.sampled_from(
        (
            *("<think>", "</think>", "<tool_call>", "[THINK]", "[/THINK]", "<", "</", "think>"),
            *("{", "\n", " ", "Hi", "é", "😀", ".", "<tool", "_call>"),
        )
    ),
    max_size=12,
).map("".join)
SETTINGS = st.tuples(st.booleans(), st.sampled_from([None, "", "<tool_call>"]))


def cut(text: str, places: Sequence[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@given(TEXTS, st.lists(st.integers(0, 99), max_size=6), SETTINGS)
def test_any_cut_gives_the_same(
    text: str, places: list[int], settings: tuple[bool, str | None]
) -> None:
    is_open, calls = settings
    whole = kinds([text], is_open=is_open, calls=calls)
    assert "".join(each for each, _ in whole) == text
    assert kinds(cut(text, places), is_open=is_open, calls=calls) == whole
    assert kinds(list(text), is_open=is_open, calls=calls) == whole


class Counted(str):
    """Text that counts the characters which are copied out of it, and out of these copies."""

    num_copied = 0

    def __getitem__(self, key: Any) -> "Counted":
        return self._copy(super().__getitem__(key))

    def __radd__(self, before: str) -> "Counted":
        return self._copy(str(before) + str(self))

    @classmethod
    def _copy(cls, text: str) -> "Counted":
        cls.num_copied += len(text)
        return cls(text)


def test_many_tags_cost_no_more_than_their_characters() -> None:
    text = "<think> a </think> b" * 20_000
    reader = ThoughtReader()
    Counted.num_copied = 0
    pieces = [*reader.push(Counted(text)), *reader.flush()]
    assert "".join(piece.text for piece in pieces if piece.kind == "words") == "b" * 20_000
    assert "".join(piece.text for piece in pieces) == text
    assert len(text) <= Counted.num_copied < 8 * len(text)


@given(TEXTS, st.lists(st.integers(0, 99), max_size=8), st.lists(st.integers(0, 99), max_size=6))
def test_ids_of_the_words_spell_the_words(text: str, borders: list[int], places: list[int]) -> None:
    """Tokens of any bytes, in chunks of any size; token 0..255 are the bytes themselves."""
    data = text.encode()
    bounds = [0, *sorted(place % (len(data) + 1) for place in borders), len(data)]
    tokens = [data[start:end] for start, end in pairwise(bounds)]
    vocabulary = [bytes([byte]) for byte in range(256)] + tokens
    ids = list(range(256, 256 + len(tokens)))
    chooser = WordIds(vocabulary, lambda words: list(words.encode()))
    reader = ThoughtReader()
    chosen: list[int] = []
    # A chunk's ids begin in its text: the engine gives both out together.
    num_given = num_bytes = 0
    chunks = cut(text, places)
    for number, chunk in enumerate(chunks):
        is_last = number == len(chunks) - 1
        num_bytes += len(chunk.encode())
        starts = [sum(map(len, tokens[:index])) for index in range(len(tokens))]
        num_ids = sum(start < num_bytes or is_last for start in starts)
        pieces: list[Piece] = [*reader.push(chunk), *(reader.flush() if is_last else ())]
        chosen += chooser.push(ids[num_given:num_ids], pieces, is_last=is_last)
        num_given = num_ids
    assert b"".join(vocabulary[token] for token in chosen).decode() == words_of(text)
    if words_of(text) == text:
        assert chosen == ids


# --- conversations ---


def save_model(path: Path, template: str, *, has_tags: bool) -> Path:
    """A random model; `has_tags`: its vocabulary has the tags as tokens."""
    save_tiny_model(path, "llama", num_hidden_layers=1, max_position_embeddings=2000)
    tokenizer = Bpe.from_file(str(path / "tokenizer.json"))
    tags = ["<think>", "</think>"] if has_tags else []
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", *tags])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


class Talker:
    """An engine whose model writes given texts, one for each prompt."""

    def __init__(self, path: Path, *, thinks: bool = False) -> None:
        self.tokenizer: Tokenizer = load_tokenizer(path, {})
        self.texts: list[str] = []
        self.prompts: list[list[int]] = []
        self._left: list[int] = []
        self._expected: list[int] = []
        config = EngineConfig(prefill_chunk=64, ngram_drafts=False, thinks=thinks)
        self.engine = Engine(
            ScriptedBackend(self._next),
            read_vocabulary(self.tokenizer, path, thinks=thinks),
            context_length=600,
            config=config,
            clock=SystemClock(),
        )

    def _next(self, held: list[int]) -> int:
        if held != self._expected:  # another prompt
            self.prompts.append(list(held))
            text = self.texts.pop(0) if self.texts else ""
            self._left = [*self.tokenizer.encode_spelled(text), END]
        token = self._left.pop(0) if self._left else END
        self._expected = [*held, token]
        return token

    def prompt(self) -> str:
        """The last prompt as text, control tokens included."""
        return self.tokenizer.full.decode(self.prompts[-1], skip_special_tokens=False)


async def answer(talk: Conversation, turn: int, use: ToolUse | None = None) -> list[TokenChunk]:
    return [chunk async for chunk in talk.generate(TurnId(turn), use=use)]


def words(chunks: Sequence[TokenChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def thought(chunks: Sequence[TokenChunk]) -> str:
    return "".join(chunk.thought for chunk in chunks)


Make = Callable[..., Talker]


@pytest.fixture
def talker(tmp_path: Path) -> Make:
    def make(template: str = CHATML, *, has_tags: bool = True, thinks: bool = False) -> Talker:
        path = save_model(tmp_path, template, has_tags=has_tags)
        return Talker(path, thinks=thinks)

    return make


@pytest.mark.parametrize("has_tags", [True, False], ids=["one token", "in pieces"])
async def test_the_history_holds_the_words_alone(talker: Make, has_tags: bool) -> None:
    made = talker(has_tags=has_tags)
    made.texts = ["<think>\nThe caller said hello.\n</think>\n\nHi there!", "Noon."]
    talk = await made.engine.open_conversation("Be brief.")
    await talk.commit("hello")
    chunks = await answer(talk, 1)
    assert words(chunks) == "Hi there!"
    assert thought(chunks) == "The caller said hello."
    assert talk.messages[-1] == ChatMessage("assistant", "Hi there!")
    first = made.prompts[-1]
    await talk.commit("what time is it")
    chunks = await answer(talk, 2)
    assert "think" not in made.prompt()
    assert made.prompts[-1][: len(first)] == first
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.cached_tokens >= len(first), "all before the reply is reused"
    made.engine.close()


async def test_a_reply_is_cut_by_the_words_that_were_heard(talker: Make) -> None:
    made = talker()
    made.texts = ["<think>Be long.</think>One, two, three."]
    talk = await made.engine.open_conversation("Be brief.")
    await talk.commit("count")
    await answer(talk, 1)
    await talk.truncate_reply(5)
    assert talk.messages[-1].text.startswith("One, ")
    assert "three" not in talk.messages[-1].text
    await talk.truncate_reply(0)
    assert [message.role for message in talk.messages] == ["user"]
    made.engine.close()


async def test_a_thought_that_is_never_closed_leaves_no_words(talker: Make) -> None:
    made = talker()
    made.texts = ["<think>So, the caller said hello, and I think that"]
    talk = await made.engine.open_conversation("", sampling=SamplingParams(max_tokens=8))
    await talk.commit("hello")
    chunks = await answer(talk, 1)
    assert words(chunks) == ""
    assert chunks[-1].finish_reason is FinishReason.LENGTH
    assert [message.role for message in talk.messages] == ["user"]
    made.engine.close()


async def test_a_caller_who_interrupts_a_thought(talker: Make) -> None:
    made = talker()
    made.texts = ["<think>So, the caller said hello.</think>Hi!", "Yes?"]
    talk = await made.engine.open_conversation("")
    await talk.commit("hello")
    async with aclosing(talk.generate(TurnId(1))) as stream:
        assert (await anext(stream)).text == ""
    assert [message.role for message in talk.messages] == ["user"]
    await talk.commit("hello?")
    assert words(await answer(talk, 2)) == "Yes?"
    made.engine.close()


async def test_words_with_such_characters_keep_their_ids(talker: Make) -> None:
    made = talker()
    text = "3 < 4, <b>and</b> 5 <"
    made.texts = [text]
    talk = await made.engine.open_conversation("")
    await talk.commit("hello")
    assert words(await answer(talk, 1)) == text
    assert talk._history._turns[-1].fixed_ids == made.tokenizer.encode_spelled(text)
    made.engine.close()


async def test_thoughts_are_off_unless_they_are_asked_for(talker: Make) -> None:
    made = talker(chat_templates.QWEN3)
    made.texts = ["Hi!", "Noon.", "<think>Hm.</think>Hi!"]
    talk = await made.engine.open_conversation("Be brief.")
    for number, question in enumerate(("hello", "what time is it")):
        await talk.commit(question)
        await answer(talk, number)
        assert made.prompt().endswith("assistant\n<think>\n\n</think>\n\n")
        assert made.prompt().count("<think>") == 1, "earlier replies have none"
    on = await made.engine.open_conversation("Be brief.", thinks=True)
    await on.commit("hello")
    chunks = await answer(on, 1)
    assert made.prompt().endswith("assistant\n")
    assert (words(chunks), thought(chunks)) == ("Hi!", "Hm.")
    made.engine.close()


async def test_a_setting_switches_them_on(talker: Make) -> None:
    made = talker(chat_templates.QWEN3, thinks=True)
    made.texts = ["<think>Hm.</think>Hi!", "Hi!"]
    talk = await made.engine.open_conversation("")
    await talk.commit("hello")
    assert words(await answer(talk, 1)) == "Hi!"
    assert made.prompt().endswith("assistant\n")
    messages = [ChatMessage("user", "hello")]
    assert words([each async for each in made.engine.chat(messages, thinks=False)]) == "Hi!"
    assert made.prompt().endswith("</think>\n\n")
    made.engine.close()


async def test_a_template_that_opens_the_thought(talker: Make) -> None:
    made = talker(chat_templates.R1)
    made.texts = ["Hm.\n</think>\n\nHi!", "Hm.</think>Noon."]
    talk = await made.engine.open_conversation("Be brief.")
    for number, (question, reply) in enumerate((("hello", "Hi!"), ("the time", "Noon."))):
        await talk.commit(question)
        chunks = await answer(talk, number)
        assert (words(chunks), thought(chunks)) == (reply, "Hm.")
        assert made.prompt().count("<think>") == 1
    made.engine.close()


async def test_stateless_clients_are_resumed_by_the_words(talker: Make) -> None:
    made = talker()
    made.texts = ["<think>Hm.</think>Hi there!", "Noon."]
    messages = [ChatMessage("user", "hello")]
    chunks = [each async for each in made.engine.chat(messages)]
    messages += [ChatMessage("assistant", words(chunks)), ChatMessage("user", "and the time")]
    first = len(made.prompts[-1])
    chunks = [each async for each in made.engine.chat(messages)]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.cached_tokens >= first
    assert (await made.engine.stats()).num_sequences == 1, "the same conversation goes on"
    made.engine.close()


@pytest.mark.parametrize("before", ["", "<think>I should look.</think>\n", "<think>I should"])
async def test_a_call_is_the_same_behind_a_thought(talker: Make, before: str) -> None:
    made = talker(chat_templates.QWEN)
    call = '<tool_call>\n{"name": "clock", "arguments": {"zone": "<think>"}}\n</tool_call>'
    made.texts = [before + call]
    parameters = {"type": "object", "properties": {"zone": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "clock", "parameters": parameters}}]
    use = parse_tools({"tools": tools})
    assert use is not None
    talk = await made.engine.open_conversation("")
    await talk.set_tools(use.shown)
    await talk.commit("the time")
    assert words(await answer(talk, 1, use=use)).strip() == call
    assert talk.messages[-1].text.strip() == call
    made.engine.close()


async def test_an_answer_in_json_has_no_thoughts(talker: Make) -> None:
    made = talker(chat_templates.R1)
    text = '{"tag": "<think>"}'
    made.texts = [text]
    schema = {"type": "object", "properties": {"tag": {"type": "string"}}, "required": ["tag"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": form}
    asked = parse_chat_request(body, SamplingParams())
    messages, tools, sampling = asked.prompt(made.engine.dialect)
    chunks = [each async for each in made.engine.chat(messages, sampling, tools=tools)]
    assert (words(chunks), thought(chunks)) == (text, "")
    made.engine.close()


def test_tags_that_are_control_tokens_are_seen(tmp_path: Path) -> None:
    """Magistral's are; without a spelling the thought would be spoken."""
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1)
    tokenizer = Bpe.from_file(str(tmp_path / "tokenizer.json"))
    tags = ["[THINK]", "[/THINK]", "[OTHER]"]
    tokenizer.add_special_tokens([AddedToken(tag, special=True) for tag in tags])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path, {})
    spelled = [loaded.token_bytes[loaded.added_texts[tag]] for tag in tags]
    assert spelled == [b"[THINK]", b"[/THINK]", b""]
    assert loaded.added_texts["[THINK]"] not in loaded.encode("[THINK]")
