"""Replies that begin with a short clause, which can be spoken while the rest is still thought of.

What a caller waits for is the first piece of a reply. People begin with "Well," or "Sure,"; a model
that does so too gives the voice its first piece after two or three tokens, where a plain sentence
takes about ten, and the pause after such a word is where a cut can't be heard. Two things make it:
the prompt asks for it (`AgentProfile.opening`, and the examples), and the cutter lets the first
piece end there (`tts/text_chunker.py`). Both are left out where the setting says so, and the
examples then lose their opening words, so that the gain can be measured.
"""

from dataclasses import replace

from agent.config.schema import AgentProfile, Example
from agent.session.ports.stage_ports import ChatMessage
from tts.text_chunker import CutterConfig, TextChunker, is_opener


def shaped(profile: AgentProfile, *, by_clause: bool) -> AgentProfile:
    """The agent whose model is asked to begin with a clause, or is not and has no example of it."""
    if by_clause:
        instructions = f"{profile.instructions} {profile.opening}".strip()
        return replace(profile, instructions=instructions)
    examples = tuple(Example(e.user, without_opener(e.assistant)) for e in profile.examples)
    return replace(profile, examples=examples)


def example_messages(profile: AgentProfile) -> tuple[ChatMessage, ...]:
    """The agent's examples as the model is shown them."""
    messages: list[ChatMessage] = []
    for example in profile.examples:
        messages += [
            ChatMessage("user", example.user),
            ChatMessage("assistant", example.assistant),
        ]
    return tuple(messages)


def cutting(*, by_clause: bool) -> CutterConfig:
    """Chunking of a reply: from its first clause on, or a sentence at a time."""
    return CutterConfig() if by_clause else CutterConfig(opening_chars=0)


def without_opener(text: str) -> str:
    """Without the "Sure," that it begins with, if it does."""
    first = next(iter(TextChunker().push(text)), None)
    if first is None or not (first.text.endswith(",") and is_opener(first.text)):
        return text
    rest = text[first.span[1] :].lstrip()
    return rest[:1].upper() + rest[1:] if rest else text
