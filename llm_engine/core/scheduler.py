"""Who gets the next step: a pure function of what there is to do and of the time.

A step is short: one more token for each of some replies, and at most one chunk of one prompt. In
order of importance:

- A caller who waits for the first word goes first, by deadline. Between two chunks of a prompt,
  replies get a step of their own, so that a long prompt adds at most one chunk to their next token.
- A reply whose caller still has a second of speech to listen to yields to those that have less: it
  can be computed while that is being played, and nobody hears the difference.
- Previews (work on text that may still change) get what nobody else wants: a whole chunk when the
  engine is idle, a small one beside replies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

PREVIEW_CHUNK = 16
"""Prompt tokens of a preview in a step that also decodes: the replies under way slow down by a
third rather than to a crawl. Smaller chunks pay the pass over the weights too often."""

PLAYBACK_SLACK_NS = 1_000_000_000
"""Speech still to be played that lets a reply yield. The longest step of a prompt is 0.2 s on two
cores, and the voice needs some of the rest."""


@dataclass(frozen=True, slots=True)
class ScheduleInput:
    """What a request still needs."""

    key: int
    """The request."""
    num_tokens: int
    """Tokens to be computed before the next one can be chosen; at least 1."""
    has_begun: bool
    """Whether its reply has tokens already."""
    is_preview: bool = False
    due_ns: int | None = None
    """When the first token should exist; once there are some, when their speech has been played.
    None: at once for a reply under way, after all others for a prompt."""
    last_served: int = 0
    """Number of the step in which it last got something."""

    @property
    def is_decoding(self) -> bool:
        """Whether its next token is one step away."""
        return self.has_begun and self.num_tokens == 1

    @property
    def urgency(self) -> tuple[bool, float, int]:
        """Sorts the most urgent first."""
        return self.is_preview, math.inf if self.due_ns is None else self.due_ns, self.last_served


@dataclass(frozen=True, slots=True)
class ScheduledTokens:
    """A request's part of a step."""

    key: int
    num_tokens: int


def schedule(
    work: Sequence[ScheduleInput], now_ns: int, *, prefill_chunk: int, prompt_was_last: bool
) -> list[ScheduledTokens]:
    """The next step's jobs, replies before the prompt. Empty only when there is no work.

    `prompt_was_last` says whether the step before served a prompt that a caller waits for.
    """
    replies = [each for each in work if each.is_decoding]
    pressed = [each for each in replies if _is_urgent(each, now_ns)]
    prompts = [each for each in work if not each.is_decoding]
    prompt = min(prompts, key=lambda each: each.urgency, default=None)
    if prompt is None:
        return _tokens(pressed or replies)
    if not prompt.is_preview:
        if prompt_was_last and pressed:
            return _tokens(pressed)
        return [ScheduledTokens(prompt.key, min(prompt.num_tokens, prefill_chunk))]
    chunk = min(prefill_chunk, PREVIEW_CHUNK) if replies else prefill_chunk
    return [
        *_tokens(pressed or replies),
        ScheduledTokens(prompt.key, min(prompt.num_tokens, chunk)),
    ]


def _is_urgent(reply: ScheduleInput, now_ns: int) -> bool:
    return reply.due_ns is None or reply.due_ns - now_ns < PLAYBACK_SLACK_NS


def _tokens(replies: Sequence[ScheduleInput]) -> list[ScheduledTokens]:
    return [ScheduledTokens(each.key, 1) for each in replies]
