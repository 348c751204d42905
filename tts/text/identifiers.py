"""Rules for phone numbers, codes, URLs and e-mail addresses: spelled, not counted."""

import re

from languages.profile import word_set

from .numbers import cardinal, digit_words, number_words, year
from .rule import CODE_PAIR, DASH, Rule, after, before, rule

_SCHEMES = r"(?:https?|ftp)://"
_HOST_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# Bare domains need a known ending: "Node.js" and "end.Then" are not addresses.
_TLD = (
    r"(?:com|org|net|edu|gov|mil|io|ai|dev|app|info|biz|co|me|tv|us|uk|ca|de|fr|eu|au|nz|ie|ch|nl|"
    r"in|jp|ly|gg|fm|xyz|site|online|store|tech|health|bank|example|test|local)"
)
_PATH = r"(?:[/?#][^\s<>\"”“)\]}]*)?"
_SPELLED_IN_ADDRESSES = {".": "dot", "-": "dash", "_": "underscore", "+": "plus", "~": "tilde"}
_LETTERS_NOT_WORDS = word_set(
    """
    www tv io ai uk us eu fm gg pdf html xml api sql ftp ssh
    """
)
_FILE_ENDING = (
    r"(?:pdf|txt|csv|docx?|xlsx?|pptx?|png|jpe?g|gif|svg|mp[34]|wav|zip|json|ya?ml|toml|html?|py|js|"
    r"ts|md|exe|log|xml)"
)
_FILE_LETTERS = word_set(
    """
    pdf txt csv png svg html htm xml js ts md py mp3 mp4 exe
    """
)

# Numbers after these are codes. "number", "code", "is" and the like may stand in between.
_CODE_LABEL = re.compile(
    r"\b(?:order|account|confirmation|reference|ref|ticket|case|tracking|invoice|pin|code|"
    r"pass ?code|password|ext|extension|zip|postcode|serial|card|member(?:ship)?|policy|"
    r"booking|routing|otp|pnr|id|area|licen[cs]e|claim|locker|box|security|access|model|part|digits?)"
    r"(?:\s+(?:number|no|code|is|was|id|ending|in|of|with|digits|are))*[\s.:#,]*$",
    re.IGNORECASE,
)
_PLACE_LABEL = re.compile(
    r"\b(?:(?i:room|suite|apartment|apt|unit|flight|highway|hwy|route|interstate|channel|gate|bus|"
    r"train|building|floor|seat)|[A-Z]{2})[\s.#-]*$"
)
_STATE_LABEL = re.compile(
    r"\b(?:A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|"
    r"S[CD]|T[NX]|UT|V[AT]|W[AIVY])\s$"
)
_DIAL_LABEL = re.compile(r"\b(?:call|dial|text|phone|ring|calling|dialing)\s$", re.IGNORECASE)


def spell(letters: str) -> str:
    """ "API" -> "A.P.I": the one spelling that both phonemizers read letter by letter.

    Spaced letters turn "A" into the article; without the dots "IT" or "AID" become words; with a
    dot at the end it would also end the sentence.
    """
    return ".".join(letters.upper())


def _grouped(digits: str) -> str:
    """Groups of digits with a short pause between: "555-0199" -> "five five five, zero one ..."."""
    groups = re.findall(r"\d+", digits)
    return ", ".join("eight hundred" if group == "800" else digit_words(group) for group in groups)


def _phone(match: re.Match[str]) -> str:
    if match[0].startswith("+"):  # where "(0)" isn't dialled
        return "plus " + _grouped(match[0].replace("(0)", " "))
    return _grouped(match[0])


def _vanity_phone(match: re.Match[str]) -> str:
    return f"{_grouped(match['n'])}, " + " ".join(
        _vanity_word(word) for word in re.findall(r"[A-Z]+|\d+", match["word"])
    )


def _vanity_word(word: str) -> str:
    if word.isdecimal():
        return digit_words(word)
    return word.capitalize() if len(word) > 3 and re.search("[AEIOUY]", word) else spell(word)


def _spelled_groups(match: re.Match[str]) -> str:
    return _grouped(match[0])


def _dotted(match: re.Match[str]) -> str:
    return " dot ".join(digit_words(part) for part in match[0].split("."))


def _version(match: re.Match[str]) -> str:
    parts = match["n"].split(".")
    words = " point ".join(cardinal(int(p)) if len(p) < 5 else digit_words(p) for p in parts)
    return f"version {words}" if match["v"] else words


def _labelled_number(match: re.Match[str]) -> str | None:
    """A bare number whose reading depends on the word before it."""
    digits, context = match[0], before(match)
    if re.match(r"[.,:/]?\d| 000\b|[%°\w]", after(match)):
        return None
    if digits == "911" or (len(digits) == 3 and _DIAL_LABEL.search(context)):
        return digit_words(digits)
    if len(digits) >= 3 and _CODE_LABEL.search(context):
        return digit_words(digits)
    if len(digits) == 5 and _STATE_LABEL.search(context):
        return digit_words(digits)
    if len(digits) in (3, 4) and _PLACE_LABEL.search(context):
        return _paired(digits)
    return None


def _labelled_groups(match: re.Match[str]) -> str | None:
    """Groups of one code: "code is 123 456", "order number 4711-0815"."""
    is_code = " 000" not in match[0] and _CODE_LABEL.search(before(match))
    return _grouped(match[0]) if is_code else None


def _paired(digits: str) -> str:
    """Room and flight numbers: "302" -> "three oh two", "1204" -> "twelve oh four"."""
    if len(digits) == 4:
        return year(int(digits)) if "1000" < digits < "2100" else _pairs(digits[:2], digits[2:])
    return _pairs(digits[0], digits[1:])


def _pairs(first: str, second: str) -> str:
    if first.startswith("0"):
        return digit_words(first + second)
    head = cardinal(int(first))
    if second == "00":
        return f"{head} hundred"
    return (
        f"{head} oh {digit_words(second[1])}"
        if second[0] == "0"
        else f"{head} {cardinal(int(second))}"
    )


def _code_number(match: re.Match[str]) -> str | None:
    """ "A1B2", "4K", "302B"; not "16GB" and "250K", which count."""
    is_count = _COUNT.match(match.string, match.start()) is not None
    text = before(match)
    if is_count and not (_PLACE_LABEL.search(text) or _CODE_LABEL.search(text)):
        return None
    return _code_words(match[0])


_COUNT = re.compile(
    r"(?:\d+(?:[KMGT]B|MW|[VWL])|\d*[1-9]\d*0[KMB]|\d{3,}[KM])(?![\w'’])"
    r"|\d+[KMB](?=\s?(?:USD|GBP|EUR)\b|/[a-z])"
)
"""Capitals behind a number that are a unit, or thousands, millions and billions."""


def _code_words(code: str) -> str:
    """Mixed letters and digits: "A1B2", "mp3", "COVID-19", "B12"."""
    words: list[str] = []
    for part in re.findall(r"[^\W\d_]+|\d+(?:\.\d+)?", code):
        if part[0].isdecimal():
            words.append(_code_digits(part))
        elif len(part) <= 3:
            words.append(spell(part))
        else:
            words.append(part.capitalize() if part.isupper() else part)
    return " ".join(words)


def _code_digits(digits: str) -> str:
    if "." in digits or len(digits) <= 2:
        return number_words(digits)
    if len(digits) == 4 and digits.startswith(("19", "20")):
        return year(int(digits))
    return digit_words(digits)


def _address_words(text: str) -> str:
    """ "bob.smith7" -> "bob dot smith seven"."""
    words: list[str] = []
    for part in re.findall(r"[A-Za-z]+|\d+|[^A-Za-z\d]", text):
        if part.isdecimal():
            words.append(number_words(part) if len(part) <= 2 else digit_words(part))
        elif part.isalpha():
            words.append(_address_word(part))
        elif part in _SPELLED_IN_ADDRESSES:
            words.append(_SPELLED_IN_ADDRESSES[part])
    return " ".join(words)


def _address_word(word: str) -> str:
    lowered = word.lower()
    no_vowel = not re.search("[aeiouy]", lowered)
    if lowered in _LETTERS_NOT_WORDS or (no_vowel and len(word) <= 5) or len(word) == 1:
        return spell(word)
    return lowered if word.isupper() else word


def _email(match: re.Match[str]) -> str:
    return f"{_address_words(match['local'])} at {_address_words(match['host'])}"


def _url(match: re.Match[str]) -> str:
    """Host and path; the scheme, "www", the query and the fragment are noise to a listener."""
    host = re.sub(r"^www\.", "", match["host"], flags=re.IGNORECASE)
    path = re.split(r"[?#]", match["path"] or "")[0]
    stop = ""
    if trailing := re.search(r"[.,;:!?]+$", match[0]):
        # The mark at the very end belongs to the sentence, not to the address.
        stop = trailing[0][0]
        path = path.rstrip(".,;:!?")
    segments = [segment for segment in path.split("/") if segment][:_MAX_PATH_SEGMENTS]
    words = [_address_words(host), *(f"slash {_address_words(s)}" for s in segments)]
    return " ".join(words) + stop


_MAX_PATH_SEGMENTS = 3
"""Most segments of a path that are spoken: no listener keeps more of an address in mind; the page
or a message carries the rest."""


def _file_name(match: re.Match[str]) -> str:
    ending = match["ending"]
    spoken = _code_words(ending) if ending.lower() in _FILE_LETTERS else ending
    return f"{_address_words(match['stem'])} dot {spoken}"


def _hash_number(match: re.Match[str]) -> str:
    digits = match["n"]
    return "number " + (cardinal(int(digits)) if len(digits) <= 3 else digit_words(digits))


def _hash_groups(match: re.Match[str]) -> str:
    return "number " + _grouped(match["n"])


def _hash_code(match: re.Match[str]) -> str | None:
    """ "order #A1B2C3", "#TK-4821": a code has a digit and no word, or a label before it."""
    code = match["code"]
    is_labelled = _CODE_LABEL.search(before(match)) is not None
    if not re.search(r"\d", code):
        letters = code.replace("-", "")
        if not is_labelled or not letters.isupper():
            return None
        # "use code #SUMMER": words have more vowels than codes.
        is_word = len(letters) > 3 and 3 * len(re.findall("[AEIOUY]", letters)) >= len(letters)
        return letters.lower() if is_word else f"number {spell(letters)}"
    if not is_labelled and re.search(r"[^\W\d_]{5}|^[A-Z]?[a-z]{2,}(?:19|20)\d\d$", code):
        return None
    if re.search(r"\bhash ?tag\s$", before(match), re.IGNORECASE):
        return None
    return f"number {_code_words(code)}"


# At most six labels: without a bound, "a.a.a.a" takes quadratic time.
_LABELS = rf"(?:{_HOST_LABEL}\.){{1,6}}"
_EMAIL = rf"(?P<local>[A-Za-z0-9][\w.+-]{{0,63}})@(?P<host>{_LABELS}[A-Za-z]{{2,24}})(?!\w)"
_DOMAIN = rf"(?P<host>{_LABELS}{_TLD})(?![\w@-]|\.\w)(?P<path>{_PATH})"

WORD_RULES: tuple[Rule, ...] = (
    rule(
        rf"{_SCHEMES}(?:[^\s@/]{{1,64}}@)?(?P<host>[A-Za-z0-9][\w.-]{{0,253}}?)(?::\d+)?(?=[/?#\s\"”)\]<>,;!]|\.?(?:\s|$)|$)"
        rf"(?P<path>{_PATH})",
        _url,
        re.IGNORECASE,
    ),
    rule(_EMAIL, _email),
    rule(_DOMAIN, _url, re.IGNORECASE),
    rule(rf"(?P<stem>[A-Za-z][\w-]{{0,63}})\.(?P<ending>{_FILE_ENDING})(?![\w.]\w|\w)", _file_name),
    rule(r"(?P<v>v)(?P<n>\d{1,4}(?:\.\d{1,6}){0,3})(?![\w.]\d|\w)", _version),
    rule(
        r"(?!(?:UTC|GMT)-)(?=[A-Za-z-]{0,24}\d)[A-Za-z]{1,12}(?:-?\d{1,8}(?:\.\d{1,3})?)(?:-?[A-Za-z]{1,4}-?\d{1,8}|[A-Z]{1,3}){0,6}(?!\w)",
        _code_number,
    ),
)

SYMBOL_RULES: tuple[Rule, ...] = (
    rule(r"#(?P<code>[A-Za-z][A-Za-z0-9]{0,40}(?:-[A-Za-z0-9]{1,40}){0,4})(?!\w)", _hash_code),
)

_AREA = r"(?:\(\d{3}\)\s?|\d{3}[-. ])"

NUMBER_RULES: tuple[Rule, ...] = (
    rule(rf"(?:\+?1[-. ]?)?{_AREA}\d{{3}}[-. ]\d{{4}}(?![\w-]|\.\d)", _phone),
    rule(rf"(?:\+?1[-. ])?\d{{3}}{DASH}\d{{4}}(?![\w-]|\.\d)", _phone),
    rule(r"\+\d{1,3}(?:[-. ]?\(?\d{1,4}\)?){2,6}(?![\w-])", _phone),
    rule(r"\+?(?P<n>1-8(?:00|33|44|55|66|77|88))-(?P<word>[A-Z\d][A-Z\d-]{3,14})\b", _vanity_phone),
    rule(r"\d{4}([- ])\d{4}\1\d{4}(?:\1\d{4})?(?![\w-])", _spelled_groups),
    rule(r"\d{3}-\d{2}-\d{4}(?![\w-])", _spelled_groups),
    rule(r"\d{5}-\d{4}(?![\w-])", _spelled_groups),
    rule(
        r"(?!\d{4}-\d\d-\d\d(?!\d)|\d{1,2}-\d{1,2}-\d{4}(?!\d))\d{1,9}(?:-\d{1,9}){2,8}(?![\w-])",
        _spelled_groups,
    ),
    rule(rf"{CODE_PAIR}(?!\s(?:BC|B\.C|years?))", _spelled_groups),
    rule(r"(?:\(0\d{2,4}\)\s?|0\d{2,4}[- ])\d{3,4}[- ]?\d{3,4}(?![\w-])", _spelled_groups),
    rule(r"\d{1,3}(?:\.\d{1,3}){3}(?![\w.]\d|\w)", _dotted),
    rule(r"(?P<v>)(?P<n>\d{1,4}(?:\.\d{1,6}){2})(?![\w.]\d|\w)", _version),
    rule(r"#(?P<n>\d{3,9}(?:-\d{2,12}){1,4})(?![\w-])", _hash_groups),
    rule(r"#(?P<n>\d{1,12})\b", _hash_number),
    rule(r"\d{2,8}(?: \d{3,8}|-\d{2,8}){1,4}(?![\w-]|[.,:]\d)", _labelled_groups),
    rule(r"\d{3,12}(?!\d)", _labelled_number),
    rule(r"\d{1,6}(?:[A-Z]\d{0,6}|-[A-Z]\b){1,6}(?![\w'’])", _code_number),
    rule(
        r"(?P<local>\d[\w.+-]{0,63})@(?P<host>(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24})(?!\w)",
        _email,
    ),
)
