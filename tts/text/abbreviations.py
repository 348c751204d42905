"""Rules for abbreviations, acronyms and Roman numerals, and whether their dot ends a sentence."""

import re

from languages.profile import word_set

from .dates import MONTHS, WEEKDAYS
from .identifiers import spell
from .numbers import cardinal, ordinal
from .rule import Rule, after, alternatives, before, rule

_TITLES = {
    "Dr": "Doctor",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Prof": "Professor",
    "Gen": "General",
    "Sen": "Senator",
    "Rep": "Representative",
    "Gov": "Governor",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Col": "Colonel",
    "Sgt": "Sergeant",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Pres": "President",
    "Mt": "Mount",
    "Ft": "Fort",
    "St": "Saint",
}
"""Stand before a name, so their dot never ends a sentence. In front of one only: "main St." """

_NEVER_FINAL = {
    "e.g.": "for example",
    "i.e.": "that is",
    "vs.": "versus",
    "approx.": "approximately",
    "cf.": "compare",
    "ca.": "about",
    "viz.": "namely",
    "esp.": "especially",
    "incl.": "including",
    "excl.": "excluding",
    "est.": "estimated",
}
_MAYBE_FINAL = {
    "etc.": "et cetera",
    "et al.": "and others",
    "Inc.": "Incorporated",
    "Ltd.": "Limited",
    "Co.": "Company",
    "Corp.": "Corporation",
    "Jr.": "Junior",
    "Sr.": "Senior",
    "St.": "Street",
    "Ave.": "Avenue",
    "Rd.": "Road",
    "Blvd.": "Boulevard",
    "Hwy.": "Highway",
    "Apt.": "Apartment",
    "Ste.": "Suite",
    "Dept.": "Department",
    "dept.": "department",
    "Univ.": "University",
    "hrs.": "hours",
    "hr.": "hour",
    "mins.": "minutes",
    "secs.": "seconds",
    "lbs.": "pounds",
    "lb.": "pounds",
    "oz.": "ounces",
    "tel.": "telephone",
    "Tel.": "telephone",
    "ext.": "extension",
    "Ext.": "extension",
    "temp.": "temperature",
    "max.": "maximum",
    "misc.": "miscellaneous",
    "govt.": "government",
    "asst.": "assistant",
    "mgr.": "manager",
    "appt.": "appointment",
    "Ph.D.": "P.H.D",
    "a.k.a.": "A.K.A",
}
_BEFORE_NUMBER = {
    "No.": "number",
    "no.": "number",
    "Nos.": "numbers",
    "p.": "page",
    "pp.": "pages",
    "vol.": "volume",
    "Vol.": "volume",
    "fig.": "figure",
    "Fig.": "figure",
    "ch.": "chapter",
    "Ch.": "chapter",
    "sec.": "section",
    "Sec.": "section",
}
_WHOLE_WORDS = {
    "w/o": "without",
    "w/": "with",
    "b/c": "because",
    "vs": "versus",
    "OK": "okay",
    "Ok": "okay",
    "ok": "okay",
    "A/C": "A.C",
    "I/O": "I.O",
    "N/A": "not applicable",
}

_SAID_AS_WORDS = word_set(
    """
    NASA NATO OPEC UNESCO UNICEF FIFA PIN SIM RAM ROM GIF JPEG LASER SWAT FEMA OSHA POTUS
    SCOTUS SCUBA LAN WAN ZIP COVID AIDS BIOS CAPTCHA SAAS PAAS ASCII NASDAQ NAFTA RADAR SONAR
    WASP
    """
)
# Short words that are shouted, not spelled. "IT" and "US" are missing on purpose.
_SHOUTED = word_set(
    """
    A I AM AN AND ARE AS AT BE BUT BY CAN DO FOR GET GO GOOD HAD HAS HAVE HE HER HI HIM HIS
    HOW IF IN IS LET LIKE ME MORE MUST MY NEW NO NOT NOW OF OFF OH ON ONE ONLY OR OUR OUT
    PLEASE SEE SHE SO STOP THAT THE THEM THEY THIS TO TOO TOP TWO UP VERY WAS WAY WE WELL WHAT
    WHEN WHO WHY WILL WITH YES YOU YOUR ALL ALSO ANY ASK BACK BEST BIG BUY CALL DAY DID DONE
    DONT EACH END EVEN EVER EVERY FREE FROM FULL GOT GREAT HELP HERE HOT JUST KEEP KNOW LAST
    LONG LOVE MADE MAKE MUCH NEED NEVER NEXT NICE OLD OPEN OVER PUT READ REAL RED RUN SALE
    SAID SAME SAVE SAY SIX SOME SURE TAKE TEN TELL THAN THEN TIME TRY TURN USE WAIT WANT WARN
    WENT WERE WIN WORK WOW YET YEAH YEP NOPE HEY
    """
)
_MAX_ACRONYM = 5
"""Capitals of six letters and more are emphasis; of five and fewer usually an acronym."""

_COUNTED = (
    r"(?:Chapter|Part|Section|Act|Scene|Volume|Book|Phase|Type|Level|Article|Title|Super Bowl|"
    r"World War|Version|Grade|Stage|Class|Appendix|Figure|Table|Step|Mark|Rocky|Star Wars)"
)
_REGNAL = (
    r"(?:Henry|Louis|George|Charles|Elizabeth|James|William|Edward|Richard|John Paul|Pius|Benedict|"
    r"Napoleon|Nicholas|Philip|Catherine|Alexander|Francis|Leo|Gregory|Victor|Mary|Ramses|Thutmose)"
)
_ROMAN = r"(?=[IVXLC]+\b)(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})(?<=[IVXLC])"
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}

_FINAL_DOTTED = re.compile(
    r"(?:^|[\s(\[\"“'‘])(?P<word>(?:[A-Za-z]\.)+|[A-Za-z]{1,8}\.|(?:et al|Ph\.D|a\.k\.a)\.)$"
)
_NAMED = re.compile(r"(?:\b[A-Z]\w+|\d(?:st|nd|rd|th))\s$")
"""Text before the "St." of a street."""
_WORD_AFTER = re.compile(r"[^\w]*(?P<word>\w+)")


def is_abbreviation(text: str, following: str) -> bool:
    """True where the dot at the end of `text` only abbreviates, given the text that follows.

    Where both are possible ("at 5 p.m. We") the case of the next word decides; after initials
    ("the U.S. Army", "J. Smith") the answer is yes: a sentence cut in two sounds worse than two
    sentences spoken as one.
    """
    found = _FINAL_DOTTED.search(text)
    if not found:
        return False
    word = found["word"]
    next_word = _WORD_AFTER.match(following)
    next_text = next_word["word"] if next_word else ""
    if word[:-1] in _TITLES and word != "St.":
        return True
    if word.lower() in _NEVER_FINAL:
        return True
    if word in _BEFORE_NUMBER:
        return next_text[:1].isdecimal()
    if word.lower() in ("a.m.", "p.m."):
        return not _starts_sentence(next_text)
    if re.fullmatch(r"(?:[A-Za-z]\.)+", word):
        return word != "I."
    if word[:-1] in _DATE_ABBREVIATIONS:
        return True
    if word == "St." and next_text[:1].isupper():
        return not _NAMED.search(text[: -len(word)])
    if word in _MAYBE_FINAL:
        return not next_text[:1].isupper()
    return False


def may_abbreviate(text: str) -> bool:
    """Could the dot at the end of `text` belong to an abbreviation? The next word may tell."""
    found = _FINAL_DOTTED.search(text)
    if not found:
        return False
    word = found["word"]
    known = (word[:-1] in _TITLES, word.lower() in _NEVER_FINAL, word in _MAYBE_FINAL)
    dated = word[:-1] in _DATE_ABBREVIATIONS
    return any(known) or dated or word in _BEFORE_NUMBER or "." in word[:-1] or len(word) == 2


_DATE_ABBREVIATIONS = word_set(
    """
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri
    """
)


def _starts_sentence(word: str) -> bool:
    if not word[:1].isupper() or word in MONTHS or word in WEEKDAYS:
        return False
    return not (word.isupper() and 2 <= len(word) <= 4)


def _with_stop(match: re.Match[str], words: str) -> str:
    """Give back the full stop that the abbreviation's dot also was."""
    following = after(match)
    rest = following.lstrip("\"')]” ")
    if not rest or rest[0] == "\n":
        return words + "."
    if rest[0] in ".,;:!?":
        return words
    up_to_here = before(match) + match[0]
    return words if is_abbreviation(up_to_here, following) else words + "."


def _title(match: re.Match[str]) -> str:
    return _TITLES[match["t"]]


def _saint_or_street(match: re.Match[str]) -> str:
    """ "St. James" but "Main St. Turn left": a street follows a name or a number."""
    saint = re.match(r"\s[A-Z][a-z]", after(match)) and not _NAMED.search(before(match))
    return "Saint" if saint else _with_stop(match, "Street")


def _dotted_word(match: re.Match[str]) -> str:
    text = match[0]
    if text.lower() in _NEVER_FINAL:
        words = _NEVER_FINAL[text.lower()]
        return words.capitalize() if text[0].isupper() else words
    return _with_stop(match, _MAYBE_FINAL[text])


def _before_number(match: re.Match[str]) -> str:
    return _BEFORE_NUMBER[match[0]]


def _dotted_letters(match: re.Match[str]) -> str:
    """ "U.S.", "J.K.": spelled, and the last dot kept only where a sentence ends."""
    letters = match[0].replace(".", "")
    if len(letters) == 1:
        return letters
    return _with_stop(match, spell(letters))


def _spelled_letters(match: re.Match[str]) -> str | None:
    """Letters that are spelled out already, "A.P.I"; the dot after them is a full stop."""
    text = match[0]
    if text.endswith("."):
        return None
    return text[:-2].upper() + "'s" if text.endswith("'s") else text.upper()


def _whole_word(match: re.Match[str]) -> str:
    return _WHOLE_WORDS[match[0]]


def _counted_roman(match: re.Match[str]) -> str | None:
    value = _roman(match["r"])
    if match["r"] == "I" and not re.match(r"[.,;:!?)]|$", after(match)):
        return None
    return f"{match['head']} {cardinal(value)}"


def _regnal_roman(match: re.Match[str]) -> str:
    of = "'s" if match["s"] else ""
    return f"{match['head']} the {ordinal(_roman(match['r']))}{of}"


def _roman_century(match: re.Match[str]) -> str:
    return ordinal(_roman(match["r"]))


def _roman(numeral: str) -> int:
    values = [_ROMAN_VALUES[letter] for letter in numeral]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs)


def _shouting(match: re.Match[str]) -> str:
    return " ".join(
        spell(word) if word in _SPELLED_EVEN_THEN else word.lower() for word in match[0].split()
    )


_SPELLED_EVEN_THEN = word_set(
    """
    USA FBI CIA USB PDF URL API CEO FAQ DVD TV VIP
    """
)


def _capitals(match: re.Match[str]) -> str | None:
    word, plural_s = match["caps"], (match["s"] or "").replace("’", "'")
    if word in _SHOUTED or (len(word) > _MAX_ACRONYM and re.search("[AEIOUY]", word)):
        return word.lower() + plural_s
    if word in _SAID_AS_WORDS:
        return word + plural_s
    return spell(word) + ("'s" if plural_s else "")


def _ampersand_letters(match: re.Match[str]) -> str:
    return f"{spell(match['a'])} and {spell(match['b'])}"


def _choice(match: re.Match[str]) -> str:
    """ "and/or" -> "and or", "yes/no" -> "yes or no", "TCP/IP" -> "T.C.P I.P"."""
    first, second = match["a"], match["b"]
    if first.isupper() and second.isupper():
        return f"{spell(first)} {spell(second)}"
    return f"{first} {second}" if first.lower() == "and" else f"{first} or {second}"


WORD_RULES: tuple[Rule, ...] = (
    rule(
        rf"(?:{alternatives(_NEVER_FINAL)}"
        rf"|{alternatives({word.capitalize(): '' for word in _NEVER_FINAL})})",
        _dotted_word,
    ),
    rule(r"St\.(?!\w)", _saint_or_street),
    rule(rf"(?P<t>{alternatives(_TITLES)})\.?(?= [A-Z])(?<!\bRep)(?<!\bGen)(?<!\bCol)", _title),
    rule(rf"(?P<t>{alternatives(_TITLES)})\.(?= ?[A-Z])", _title),
    rule(rf"(?:{alternatives(_BEFORE_NUMBER)})(?=\s?\d)", _before_number),
    rule(rf"(?:{alternatives(_MAYBE_FINAL)})(?!\w)", _dotted_word),
    rule(r"(?:[A-Za-z]\.){1,8}[A-Za-z](?:'s)?(?![\w.]\w|\w)\.?", _spelled_letters),
    rule(r"(?:[A-Za-z]\.){2,8}(?!\w)", _dotted_letters),
    rule(r"[A-Z]\.(?= ?[A-Z][a-z.])", _dotted_letters),
    rule(rf"(?P<head>{_COUNTED}) (?P<r>{_ROMAN})\b(?!['’.]\w)", _counted_roman),
    rule(
        rf"(?P<head>{_REGNAL}) (?P<r>(?=[IVX]{{2,}}\b|V\b|X\b){_ROMAN})\b"
        r"(?P<s>['’]s\b)?(?!['’.]\w)",
        _regnal_roman,
    ),
    rule(rf"(?P<r>(?=[IVX]{{2,}}\b|V\b|X\b){_ROMAN})(?= centur(?:y|ies)\b)", _roman_century),
    rule(r"(?P<a>[A-Z]{1,2})&(?P<b>[A-Z]{1,2})(?!\w)", _ampersand_letters),
    rule(r"(?P<a>[A-Za-z]{2,12})/(?P<b>[A-Za-z]{2,12})(?![\w/])", _choice),
    rule(rf"(?:{alternatives(_WHOLE_WORDS)})(?![\w'’])", _whole_word),
    rule(r"[A-Z]{2,}(?: (?:[A-Z]{2,}|I|A)){2,}(?![\w'’])", _shouting),
    rule(r"(?P<caps>[A-Z]{2,})(?P<s>['’]?s)?(?![^\W_])", _capitals),
)
