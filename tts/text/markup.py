"""Rules for Markdown, symbols, emoji and everything else that is not a word."""

import re
import unicodedata
from collections.abc import Iterator

from .identifiers import spell
from .numbers import cardinal
from .rule import Rule, after, before, const, rule

EMOJI = (
    "\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\u2300-\u23ff\u25a0-\u25ff\u3030\u303d\u3297"
    "\u3299\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f"
)
"""Character-class ranges of pictures, their modifiers and joiners."""

INVISIBLE = (
    "\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\uffff"
    "\ud800-\udfff\ue000-\uf8ff"
)
"""Control characters, direction marks, private use and lone surrogates (a token cut in half)."""

_SYMBOLS = {
    "&": "and",
    "@": "at",
    "%": "percent",
    "+": "plus",
    "=": "equals",
    "÷": "divided by",
    "±": "plus or minus",
    "≈": "about",
    "≠": "is not equal to",
    "≤": "less than or equal to",
    "≥": "greater than or equal to",
    "√": "square root of",
    "∞": "infinity",
    "∑": "sum of",
    "°": "degrees",
    "²": "squared",
    "³": "cubed",
    "→": "to",
    "⇒": "so",
    "©": "copyright",
    "§": "section",
    "¶": "paragraph",
    "$": "dollar",
    "£": "pound",
    "€": "euro",
    "¥": "yen",
    "¢": "cents",
    "½": "one half",
    "µ": "micro",
    "Ω": "ohms",
    "№": "number",
    "′": "feet",
    "″": "inches",
    "−": "minus",
}
_ENTITIES = {
    "amp": "and",
    "lt": "less than",
    "gt": "greater than",
    "nbsp": "",
    "quot": "",
    "apos": "",
}


_FENCES = re.compile(r"`{3,}|^[ \t]{0,8}~{3,16}", re.MULTILINE)
TILDE_FENCE = re.compile(r"[ \t]{0,8}(?P<marks>~{3,16})[ \t]{0,8}[\w+#.-]{0,30}[ \t]{0,8}\r?")
"""Line that opens a fence of tildes: nothing else but the name of a language. Of bounded length."""


def silent_code(text: str, fence: str = "") -> Iterator[tuple[int, int]]:
    """Stretches of a text that are not spoken because of its code fences, in order.

    A block is silent from its first mark to its last one, or to the end of the text. Of a fence of
    backticks that is closed on its own line only the marks are: what is between them is read like
    `code`. Tildes are a fence at the start of a line only. `fence`: marks of the fence that the
    text begins within. The chunker counts the same marks (`tts/text_chunker.py`).
    """
    start, end = 0, 0
    is_begun_before = fence != ""
    for found in _FENCES.finditer(text):
        marks = found[0].lstrip(" \t")
        if not fence:
            line = TILDE_FENCE.match(text, found.start())
            if marks[0] == "`" or (line and text.startswith("\n", line.end())):
                fence, (start, end) = marks, found.span()
        elif marks.startswith(fence):
            if is_begun_before or text.find("\n", end, found.start()) >= 0:
                yield start, found.end()
            else:
                yield start, end
                yield found.span()
            fence, is_begun_before = "", False
    if fence:
        yield start, len(text)


def _list_number(match: re.Match[str]) -> str:
    return cardinal(int(match["n"])) + ","


def _entity(match: re.Match[str]) -> str:
    return _ENTITIES[match["name"]]


def _comparison(match: re.Match[str]) -> str | None:
    if not re.search(r"[\w)]\s?$", before(match)):
        return None
    if re.search(r"[^\W\d_]{2}\s$", before(match)) and re.match(r"\s[A-Z]", after(match)):
        # "Settings > Account" is a path through menus.
        return ","
    words = "less than" if match["sign"] == "<" else "greater than"
    return words + (" or equal to" if match["eq"] else "")


def _more_or_less(match: re.Match[str]) -> str:
    return {"<": "under", "<=": "at most", ">": "over", ">=": "at least"}[match[0]]


def _hash_tag(match: re.Match[str]) -> str:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", match["tag"])
    return "hashtag " + " ".join(cardinal(int(w[:9])) if w.isdecimal() else w for w in words)


def _letter_suffix(match: re.Match[str]) -> str:
    sign = {"++": "plus plus", "+": "plus", "#": "sharp"}[match["suffix"]]
    return f"{spell(match['letter'])} {sign}"


def _greek_letter(match: re.Match[str]) -> str | None:
    name = unicodedata.name(match[0], "")
    return name.split()[3 if "FINAL" in name else -1].lower() if name.startswith("GREEK") else None


def _slash(match: re.Match[str]) -> str | None:
    """Between words with spaces ("tea / coffee") it offers a choice; elsewhere it is noise."""
    between = re.search(r"\w\s?$", before(match)) and re.match(r"\s?\w", after(match))
    return "or" if between else ""


def _degree_like(match: re.Match[str]) -> str:
    return _SYMBOLS[match[0]]


MARKUP_RULES: tuple[Rule, ...] = (
    rule(r"<!--.{0,2000}?-->", const(""), re.DOTALL),
    rule(r"</?[A-Za-z][^<>\n]{0,200}>", const("")),
    rule(r"^[ \t]*(?:[-*_][ \t]*){3,}$", const(""), re.MULTILINE),
    rule(r"^[ \t]*\|?[ \t]*:?-{2,}[-:| \t]*$", const(""), re.MULTILINE),
    rule(r"^[ \t]*#{1,6}(?=[ \t])", const(""), re.MULTILINE),
    rule(r"^[ \t]*(?:>[ \t])+", const(""), re.MULTILINE),
    rule(r"^[ \t]*[-*+•‣◦·–](?=[ \t])(?:[ \t]+\[[ xX]\])?", const(""), re.MULTILINE),
    # [text](target): the brackets go, the text between them is scanned like any other.
    rule(
        r"!?\[(?=[^\[\]\n]{0,300}\](?:\([^()\s]{0,500}(?:\s\"[^\"\n]{0,100}\")?\)|\[[^\[\]\n]{0,60}\]))",
        const(""),
    ),
    rule(r"\](?:\([^()\s]{0,500}(?:\s\"[^\"\n]{0,100}\")?\)|\[[^\[\]\n]{0,60}\])", const("")),
    rule(r"\[\^?\d{1,3}\](?!\()", const("")),
    rule(r"(?<!\S)[:;=8][-^']?[()DPpOo|/\\3\]\[](?!\S)", const("")),
    rule(r"(?<!\S)<3(?!\S)", const("")),
    rule(rf"[{EMOJI}]+", const("")),
    rule(r"[*_]+(?=\w)|(?<=[\w.,!?:;)\"'])[*_]+|~~", const("")),
)
"""What is not spoken in any language."""

SYMBOL_RULES: tuple[Rule, ...] = (
    *MARKUP_RULES,
    rule(r"&(?P<name>amp|lt|gt|nbsp|quot|apos);", _entity),
    rule(r"#(?P<tag>[A-Za-z]\w{0,60})", _hash_tag),
    rule(r"(?P<sign>[<>])(?P<eq>=)?(?=\s?[\w(.-])", _comparison),
    rule(r"[<>]=?(?=\s?[$£€]?\d)", _more_or_less),
    rule(r"[=-]{1,2}>", const("to")),
    rule(r"~(?=\s?[$£€]?\d)", const("about")),
    rule(r"/", _slash),
    rule(rf"[{re.escape(''.join(_SYMBOLS))}]", _degree_like),
)

LINE_NUMBER_RULES: tuple[Rule, ...] = (
    rule(r"^(?P<n>\d{1,2})[.)](?=[ \t])", _list_number, re.MULTILINE),
)

WORD_RULES: tuple[Rule, ...] = (
    rule(r"(?<![Ͱ-Ͽἀ-῿])[Ͱ-Ͽ](?![Ͱ-Ͽἀ-῿])", _greek_letter),
    rule(r"(?P<letter>[A-Z])(?P<suffix>\+\+|#|\+)(?!\w)", _letter_suffix),
)
