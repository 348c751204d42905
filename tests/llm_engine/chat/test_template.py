"""Gaps between messages equal the output of the model's own template."""

from collections.abc import Callable

import jinja2
import pytest

from llm_engine.chat.template import ChatTemplate, Gap
from llm_engine.errors import ModelError, RequestError
from tests.support.fakes.llm_models import CHATML

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] "
    "+ '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe nice.<|im_end|>\n{% endif %}"
    + CHATML
)
ALTERNATING = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
    "{{ '<<' + messages[0]['content'] + '>>' }}{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
)
LAST_REPLY_DIFFERS = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ m['content'] + '</>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant><think></think>' }}{% endif %}"
)
SOURCES = [CHATML, LLAMA3, DEFAULT_SYSTEM, ALTERNATING, LAST_REPLY_DIFFERS]
ROLES = ("system", "user", "assistant", "user", "assistant", "user")


def by_char(text: str) -> list[int]:
    return [ord(character) for character in text]


def template(source: str, encode: Callable[[str], list[int]] = by_char) -> ChatTemplate:
    return ChatTemplate(source, encode, encode, bos="<s>", eos="</s>")


def written(chat: ChatTemplate, messages: list[tuple[str, str]]) -> str:
    """The dialogue as gaps and contents make it."""
    gaps = chat.gaps([role for role, _ in messages])
    ids: list[int] = []
    for (role, text), gap in zip(messages, gaps, strict=False):
        ids += [*gap.token_ids, *chat.content(role, text, gap)]
    return "".join(map(chr, [*ids, *gaps[-1].token_ids]))


def rendered(source: str, messages: list[tuple[str, str]]) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(
        messages=[{"role": role, "content": text} for role, text in messages],
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )


@pytest.mark.parametrize(
    "source", [CHATML, LLAMA3, DEFAULT_SYSTEM, ALTERNATING, LAST_REPLY_DIFFERS]
)
@pytest.mark.parametrize("num_messages", range(1, 7))
@pytest.mark.parametrize("with_system", [True, False])
def test_gaps_and_contents_make_the_rendered_text(
    source: str, num_messages: int, with_system: bool
) -> None:
    roles = ROLES[:num_messages] if with_system else ROLES[1:][:num_messages]
    if roles[-1] != "user":
        roles = (*roles, "user")
    messages = [(role, f"text {index}.") for index, role in enumerate(roles)]
    assert written(template(source), messages) == rendered(source, messages)


def test_most_templates_are_incremental() -> None:
    assert template(CHATML).is_incremental
    assert template(LLAMA3).is_incremental
    assert template(DEFAULT_SYSTEM).is_incremental
    assert template(ALTERNATING).after_reply() == ord("<")
    assert not template(LAST_REPLY_DIFFERS).is_incremental


def test_a_longer_dialogue_begins_with_the_shorter_one() -> None:
    messages = [(role, f"text {index}.") for index, role in enumerate(ROLES)]
    chat = template(CHATML)
    for num in (2, 4):
        assert written(chat, messages).startswith(written(chat, messages[:num]))


@pytest.mark.parametrize("source", [CHATML, LLAMA3, DEFAULT_SYSTEM, LAST_REPLY_DIFFERS])
@pytest.mark.parametrize("num_shown", [0, 2])
def test_a_second_system_message_behind_the_examples(source: str, num_shown: int) -> None:
    roles = (*ROLES[: 1 + num_shown], "system", "user", "assistant", "user")
    messages = [(role, f"text {index}.") for index, role in enumerate(roles)]
    chat = template(source)
    assert written(chat, messages) == rendered(source, messages)
    assert chat.is_incremental == (chat._rendered_gaps.cache_info().currsize == 0)


def test_a_template_that_refuses_a_second_system_message_says_so() -> None:
    with pytest.raises(RequestError):
        template(ALTERNATING).gaps(["system", "user", "assistant", "system", "user"])


def test_a_tokenizer_that_joins_across_borders_is_noticed() -> None:
    def joins(text: str) -> list[int]:
        return by_char(text.replace("\nH", "\u2588"))

    assert not template(CHATML, joins).is_incremental


def test_two_messages_of_one_role_where_roles_must_alternate() -> None:
    messages = [("user", "one"), ("user", "two")]
    assert written(template(ALTERNATING), messages) == "[INST] one [/INST] </s>[INST] two [/INST]"
    greeting = [("system", "S"), ("assistant", "Hi."), ("user", "one")]
    expected = "<<S>>[INST]  [/INST] Hi.</s>[INST] one [/INST]"
    assert written(template(ALTERNATING), greeting) == expected


def test_contents_are_trimmed_where_the_template_trims_them() -> None:
    gap = Gap(())
    assert template(LLAMA3).content("user", "  hi \n", gap) == by_char("hi")
    assert template(CHATML).content("user", "  hi \n", gap) == by_char("  hi \n")
    assert template(LLAMA3).content("assistant", " hi", gap) == by_char(" hi")


def test_a_space_before_the_content_goes_with_it() -> None:
    chat = template(ALTERNATING)
    (gap, *_) = chat.gaps(["user"])
    assert gap == Gap(tuple(by_char("[INST]")), " ")
    assert chat.content("user", "hi", gap) == by_char(" hi")


def test_a_refused_role_is_the_requests_fault() -> None:
    source = (
        "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{{ m['content'] }}{% endfor %}"
    )
    with pytest.raises(RequestError, match="refuses user, tool: no tools"):
        template(source).gaps(["user", "tool"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "Expected"),
        ("{{ messages[7].content.x }}", "has no element 7"),
        ("{{ raise_exception('never') }}", "never"),
        ("{{ messages + 1 }}", "TypeError"),
        ("static", "leaves out or repeats"),
        ("{% for m in messages %}{{ m.content * 2 }}{% endfor %}", "leaves out or repeats"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_useless_templates_are_the_models_fault(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"chat template fails: .*{message}"):
        template(source)
