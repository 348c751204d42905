"""Words that a turn seldom ends with, in English: what is open behind them is still to come."""

from typing import Final

DANGLING: Final = frozenset({
    "a", "an", "the", "and", "or", "but", "because", "if", "which", "um", "uh", "er", "erm",
    "hmm", "my", "your", "our", "their", "his", "i'm", "i'd", "i'll", "than", "as", "so",
    "while", "when", "where", "whether", "until", "unless", "from", "every", "both", "either",
})  # fmt: skip
"""No turn ends with these, whatever punctuation Whisper puts behind them."""

LEANING: Final = frozenset({
    "to", "for", "of", "in", "on", "at", "with", "by", "is", "are", "was", "were", "be", "been",
    "will", "would", "can", "could", "should", "must", "have", "has", "had", "do", "does",
    "not", "that", "this", "these", "very", "more", "some", "any", "please", "about", "into",
})  # fmt: skip
"""Most often more follows, but questions and answers do end with them."""
