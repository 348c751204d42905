"""Presets: named sets of models and prompts that belong together.

A preset is the layer below the settings file. It has the shape of the file, so that one can be
copied into `halfsec.toml` and changed. Those named `embedded...` need no account and no hub: their
models come with packages. The others name models on the Hugging Face hub. Without a preset, or with
"auto", one is chosen for the machine (`auto_preset.py`).
"""

from typing import Any, Final

DEFAULT_PRESET: Final = "embedded"
"""The preset that runs everywhere."""

REMOTE_PRESET: Final = "remote"
"""The preset for a language model on another server."""

_SMALL_MODEL_INSTRUCTIONS: Final = (
    "You are a friendly voice assistant on the phone. Answer in one or two short, simple "
    "sentences. Never use lists."
)

_SMALL_MODEL_OPENING: Final = (
    'Start every answer with a short phrase such as "Well," "Sure," or "I see,".'
)
"""Prompt for an early first clause; `halfsec bench clause` measures it. It names words because a
model of this size copies: with "a few short words", or with more words to choose from, it began
with them half as often."""

_EXAMPLES: Final = [
    {"user": user, "assistant": assistant}
    for user, assistant in (
        (
            "I feel a little sad.",
            "Oh, that happens. A short walk or some music may help.",
        ),
        (
            "Why do leaves turn red?",
            "Well, they lose their green color in autumn, so the red shows.",
        ),
        ("What should I have for lunch?", "Maybe a fresh salad, or some soup and bread."),
        (
            "How do I make tea?",
            "Sure, boil some water, pour it over the tea, and wait three minutes.",
        ),
        ("What is the capital of Italy?", "The capital of Italy is Rome."),
        ("Hi, good morning.", "Good morning! How can I help you?"),
        ("Thanks, bye.", "You're welcome. Have a nice day!"),
    )
]
"""Examples pinned before the conversation. A model of 135 million parameters copies the style of
its context more than it follows instructions: after short spoken turns it writes short spoken
turns."""

_HALF_BILLION_INSTRUCTIONS: Final = (
    "You are a friendly voice assistant on a phone call. Answer in one or two short spoken "
    "sentences, in plain words, without lists, markdown or code."
)
"""Told that it can't know the time or anything about the caller, this model answers "I don't know"
to half of all small talk. The examples say it better."""

_HALF_BILLION_EXAMPLES: Final = [
    {"user": user, "assistant": assistant}
    for user, assistant in (
        ("What time is it?", "Sorry, I have no clock, so I can't tell you the time."),
        ("I got a new puppy!", "Oh, how lovely, congratulations! What's the puppy's name?"),
        (
            "How do I make a pancake?",
            "Mix flour, milk and an egg, and fry the batter in butter until both sides are golden.",
        ),
        ("Who made you?", "I'm a computer program, an assistant on this phone line."),
        ("Let's say Monday.", "Okay, Monday."),
        ("No, Wednesday.", "Alright, Wednesday then, not Monday."),
        (
            "My grandpa is in the hospital.",
            "I'm so sorry to hear that. I hope he gets well soon.",
        ),
        (
            "How many goals did they score yesterday?",
            "I don't know that, I can't look up the news.",
        ),
        ("My sister lives in Ohio.", "Nice, do you visit her often?"),
        (
            "Which sports can I do in winter?",
            "Skiing, skating and hiking are all good in winter.",
        ),
    )
]
"""Left out while tools are offered: the model then talks like the examples instead of calling."""

_BILLION_INSTRUCTIONS: Final = (
    "You are a friendly voice assistant on a phone call. You are a computer program, not a person: "
    "you have no body, no home and no past. You don't know who made you or which model you are, "
    "and never name a company. Answer the caller in one or two short spoken sentences. Don't use "
    "lists, markdown or code. If you can't know something, such as the time, the weather or the "
    "caller's data, say so."
)
"""Told only that it is a program, this model eats breakfast, grew up in the Midwest and is ChatGPT:
1 of 6 tuning dialogues about itself passed, 4 with this. That Alibaba Cloud or OpenAI created it
it says all the same."""

_ONE_CALL: Final = {"parallel_tool_calls": False, "max_tool_rounds": 1}
"""Small models don't stop calling: every tool there is, and never a word. The one of 1.5 billion
parameters, given three rounds, set the heating to the degrees that the weather report named."""

_LARGE_MODEL_INSTRUCTIONS: Final = (
    "You are a voice assistant on a live call. Your words are spoken aloud as you write them, so "
    "answer the way people talk: one or two short sentences, plain words, no lists, no markdown, "
    "no emoji. Begin with the answer. Ask when you did not understand."
)

_LARGE_MODEL_OPENING: Final = (
    "Let your first two to six words be a clause of their own, closed by a comma or a period."
)

_LARGE_MODEL_PROMPT: Final = {
    "instructions": _LARGE_MODEL_INSTRUCTIONS,
    "opening": _LARGE_MODEL_OPENING,
}

_LARGE_RECOGNIZER: Final = {
    "model": "deepdml/faster-whisper-large-v3-turbo-ct2",
    "device": "cuda",
    "compute_type": "float16",
}

PRESETS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "embedded": {
        "asr": {"model": "whisper-tiny.en", "language": "en"},
        "llm_engine": {
            "model": "smollm2-135m-instruct",
            "max_tokens": 64,
            "repetition_penalty": 1.1,
            "context": 2048,  # it was trained on no more
            **_ONE_CALL,
        },
        "agents": {
            "default": {
                "instructions": _SMALL_MODEL_INSTRUCTIONS,
                "opening": _SMALL_MODEL_OPENING,
                "examples": _EXAMPLES,
            },
        },
    },
    "embedded-0.5b": {
        "asr": {"model": "whisper-tiny.en", "language": "en"},
        "llm_engine": {
            "model": "qwen2.5-coder-0.5b-instruct",
            "dtype": "int4",
            "max_tokens": 96,
            "repetition_penalty": 1.05,
            "examples_with_tools": False,
            "reply_tool": True,
            "grounded_calls": True,
            **_ONE_CALL,
        },
        "agents": {
            "default": {
                "instructions": _HALF_BILLION_INSTRUCTIONS,
                "opening": _LARGE_MODEL_OPENING,
                "examples": _HALF_BILLION_EXAMPLES,
            },
        },
    },
    "embedded-1.5b": {
        "asr": {"model": "whisper-tiny.en", "language": "en"},
        "llm_engine": {
            "model": "qwen2.5-coder-1.5b-instruct",
            "dtype": "int4",
            "max_tokens": 96,
            "repetition_penalty": 1.05,
            "examples_with_tools": False,
            "reply_tool": True,
            "grounded_calls": True,
            **_ONE_CALL,
        },
        "agents": {
            "default": {
                "instructions": _BILLION_INSTRUCTIONS,
                "opening": _LARGE_MODEL_OPENING,
                "examples": _HALF_BILLION_EXAMPLES,
            },
        },
    },
    "cpu": {
        "asr": {"model": "Systran/faster-whisper-base.en", "language": "en"},
        "llm_engine": {
            "model": "qwen3-1.7b",
            "temperature": 0.7,
            "top_p": 0.8,
            "max_tokens": 96,
            "context": 4096,
        },
        "agents": {"default": _LARGE_MODEL_PROMPT},
    },
    "remote": {
        "asr": {"model": "whisper-tiny.en", "language": "en"},
        "llm_engine": {
            "model": "openai:http://127.0.0.1:8000/v1#default",  # vLLM's port
            "temperature": 0.7,
            "max_tokens": 128,
            "context": 8192,
        },
        "agents": {"default": _LARGE_MODEL_PROMPT},
    },
    "gpu-4b": {
        "asr": _LARGE_RECOGNIZER,
        "llm_engine": {
            "model": "qwen3-4b-instruct-2507",
            "temperature": 0.7,
            "top_p": 0.8,
            "dtype": "fp8",
            "context": 8192,
            "cache_mb": 3072,
        },
        "agents": {"default": _LARGE_MODEL_PROMPT},
    },
    "gpu-8b": {
        "asr": _LARGE_RECOGNIZER,
        "llm_engine": {
            "model": "qwen3-8b",
            "temperature": 0.7,
            "top_p": 0.8,
            "dtype": "fp8",
            "context": 8192,
            "cache_mb": 8192,
        },
        "agents": {"default": _LARGE_MODEL_PROMPT},
    },
    "gpu-70b": {
        "asr": _LARGE_RECOGNIZER,
        "llm_engine": {
            "model": "meta-llama/Llama-3.3-70B-Instruct",
            "temperature": 0.6,
            "dtype": "fp8",
            "context": 8192,
            "cache_mb": 8192,
        },
        "agents": {"default": _LARGE_MODEL_PROMPT},
    },
}
