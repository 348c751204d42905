"""Rules of the normalizer for languages other than English, made of a language's profile.

The order is that of the English rules: what the language says by itself, then addresses, dates and
times, money, measures, telephone numbers and codes, plain numbers. Number words are num2words' (the
extra `languages`): its tables of 50 languages are kept up by others. A number
of more than twelve digits is read digit by digit.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from languages.profile import Keypad, SpokenRule, Unit, Writing

from .keypad import keypad_rules
from .markup import MARKUP_RULES
from .rule import CODE_PAIR, DASH, DIFFERENCE, Rule, RuleSet, after, alternatives, before, rule

NUMBER_START: Final = re.compile(r"[\d$£€½¼¾]|[-−+±~](?=[\d$£€])")
"""A number, or what belongs to one, begins here."""

_MAX_CARDINAL_DIGITS: Final = 12
"""Longer numbers are read digit by digit, and never made an int, which has a limit of digits."""
_DAY_LINK: Final = r"(?:\s|\.\s?|\sde\s|er\s|º\sde\s)"
"""Between a day and the name of its month."""
_MAX_COUNT_DIGITS: Final = 6
"""More digits without groups are an order number or a telephone number."""


class NumberWords:
    """Number words of one language, by num2words. Any thread."""

    def __init__(self, writing: Writing) -> None:
        """Raises ModuleNotFoundError where the extra `languages` is not installed."""
        from num2words import num2words

        self._num2words: Any = num2words
        self._language = writing.number_words
        self._corrected = writing.corrected_cardinal

    def cardinal(self, value: int) -> str:
        return self._corrected(_cached(self._num2words, value, self._language, "cardinal"))

    def ordinal(self, value: int) -> str:
        return _cached(self._num2words, value, self._language, "ordinal")

    def year(self, value: int) -> str:
        return _cached(self._num2words, value, self._language, "year")

    def digits(self, text: str) -> str:
        """Digits read one by one; all else is skipped."""
        return " ".join(self.cardinal(int(digit)) for digit in text if digit in "0123456789")


@lru_cache(maxsize=2048)
def _cached(num2words: Any, value: int, language: str, to: str) -> str:
    return str(num2words(value, lang=language, to=to)).replace("\u00ad", "")


class _Weekdays:
    """Short forms of weekdays, which are read as such only in the right surroundings."""

    def __init__(self, writing: Writing) -> None:
        self.names: dict[str, str] = {}
        for short, name in writing.weekdays.items():
            self.names |= {short.capitalize(): name.capitalize(), short: name}
        shorts = alternatives(self.names)
        full = alternatives(set(self.names.values()))
        months = alternatives([*writing.months, *writing.month_abbreviations])
        day = rf"(?:(?:{shorts})\.|(?:{full})\b)"
        joints, links, articles = (
            writing.weekday_joints,
            writing.weekday_links,
            writing.weekday_articles,
        )
        when = (
            rf"\d{{1,2}}(?:[.:/h-]\d|\s?(?:Uhr|h)\b|(?:\.\s?|er\s|\sde\s|\s)(?:{months})\b)"
            r"|\d{4}-\d\d-\d\d"
        )
        self.pattern = rf"(?P<w>{shorts})\.(?P<dash>\s?[-–]\s?(?={day}))?"
        clock = r"\d{1,2}(?:[:.h]\d\d|\s?(?:Uhr|h)\b|\s?[-–]\s?\d{1,2}(?::\d\d|\s?(?:Uhr|h)\b))"
        self.undotted_pattern = (
            rf"(?P<w>{shorts})(?:\s?[-–]\s?(?P<v>{shorts})(?![\w.])|(?=\s{clock}))"
        )
        """Short forms without dots: two with a dash, or one in front of a time of day."""
        named = alternatives({*self.names.values(), *writing.months})
        self.range_pattern = rf"(?P<w>{named})\s?[-–]\s?(?=(?:{named})(?!\w))"
        """A weekday or a month, and the dash in front of another one."""
        self._day_before = re.compile(rf"\b{day}\s?(?:{joints})\s?$")
        self._article_before = re.compile(rf"\b(?:{articles})\s$", re.IGNORECASE)
        self._behind = re.compile(
            rf"\s?(?:{joints})\s?{day}"
            rf"|,?\s(?:\w{{2,3}}\s)?(?:{when})"
            rf"|,?\s(?:{links})\s\d"
        )
        self._behind_article = re.compile(rf"\s(?:\d|(?:{links})\s\w)")

    def is_meant(self, match: re.Match[str]) -> bool:
        """True where a date, a time or another weekday is beside the short form."""
        if match["dash"] or self._day_before.search(before(match)):
            return True
        behind = after(match)
        if self._behind.match(behind):
            return True
        return self.has_article(before(match)) and self._behind_article.match(behind) is not None

    def has_article(self, text: str) -> bool:
        """True for a text that ends with the article of a day."""
        return self._article_before.search(text) is not None


class _Reader:
    """Spoken forms of one language."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing
        self.numbers = NumberWords(writing)
        groups = writing.groups
        self.number = (
            r"(?:[1-9]\d{0,2}(?: \d{3}){1,4}(?! ?\d)(?:,\d+|\.\d{1,2}(?!\d|\.\d))?"
            rf"|\d{{1,3}}(?:(?:,|{groups})\d{{3}})+\.\d{{1,2}}(?!\d|\.\d)|\d+\.\d{{1,2}}(?!\d|\.\d)"
            rf"|\d{{1,3}}(?:{groups}\d{{3}})+(?!\d)(?:,\d+)?|\d+(?:,\d+)?)"
        )
        """A written number without its sign, with a decimal comma, or a point as in "12.50"; blanks
        part thousands in any language."""
        self.currencies = dict(writing.currencies)
        for each in writing.currencies.values():  # "29,99 euros": written out
            self.currencies |= {each.one.split()[-1]: each, each.many: each}
        # A hyphen behind a number is a range's, behind a letter a code's ("Covid-19").
        self.sign = r"(?P<sign>(?:(?<![\w%€$£°²³.)])(?<!\d )-|[−+±~])(?=\d))?"
        self.weekdays = _Weekdays(writing)
        no_code = "(?:de|con|avec|mit|von)"  # "un pedido de 250 unidades"
        self._label = re.compile(
            rf"(?:\b(?:{writing.code_labels})[\s.:]*(?:(?!{no_code}\b)\w{{1,6}}[\s:]+){{0,2}}|#)$",
            re.IGNORECASE,
        )
        self.month_names = alternatives(
            [*writing.months, *(f"{short}." for short in writing.month_abbreviations)]
        )
        number_end = r"(?<![\w.,:/-])-?"
        symbols = re.escape("".join(each for each in writing.currencies if not each.isalnum()))
        clock = r"\d{1,2}(?:[:.]\d\d)?\s?(?:Uhr|h)(?:\s?\d\d)?|\d{1,2}:\d\d"
        day = (
            r"\d{1,2}\.(?:\d{1,2}\.(?:\d{4}|\d\d)?)?|\d{1,2}[/.]\d{1,2}(?:[/.]\d{2,4})?"
            rf"|\d{{4}}-\d\d-\d\d|\d{{1,2}}{_DAY_LINK}(?:{self.month_names})(?:\s(?:del?\s)?\d{{4}})?"
        )
        money = rf"{self.number}\s?(?:{alternatives(self.currencies)})|[{symbols}]\s?{self.number}"
        measure = rf"{self.number}\s?(?:{alternatives(writing.units)})"
        percent = rf"{self.number}\s?%"
        self._range_ends = [
            (
                re.compile(rf"{number_end}(?:{kind})\s?$", re.IGNORECASE),
                re.compile(rf"(?:{kind})(?!\w)", re.IGNORECASE),
            )
            for kind in (clock, day, money, measure, percent)
        ]
        """Of each kind: the begin of a range in front of its dash, and the end behind it."""
        self._measured = re.compile(
            rf"\d\s?(?:{alternatives([*self.currencies, *writing.units, '%'])})$"
        )
        self._plain_begin = re.compile(rf"{number_end}(?P<n>{self.number})\s?$")
        self._first_day = re.compile(rf"{number_end}(?:{day})\s?(?:{DASH}|/)\s?$", re.IGNORECASE)
        self.months = {
            **{month.casefold(): at for at, month in enumerate(writing.months, 1)},
            **{short.casefold(): at for short, at in writing.month_abbreviations.items()},
        }

    def amount(self, text: str) -> str:
        """Words of a written number without its sign."""
        whole, comma, fraction = _with_comma(text).partition(",")
        digits = re.sub(r"\D", "", whole)
        is_grouped = digits != whole
        if self._is_code(digits, is_grouped=is_grouped):
            said = self.numbers.digits(digits)
        else:
            said = self.numbers.cardinal(int(digits))
        if comma and fraction:
            said = f"{said} {self.writing.decimal} {self.numbers.digits(fraction)}"
        return said

    def _is_code(self, digits: str, *, is_grouped: bool) -> bool:
        if digits.startswith("0") and len(digits) > 1:
            return True
        is_long = len(digits) > _MAX_COUNT_DIGITS and not digits.endswith("000")
        return (is_long and not is_grouped) or len(digits) > _MAX_CARDINAL_DIGITS

    def signed(self, match: re.Match[str]) -> str:
        sign = match["sign"] or ""
        minus, plus = self.writing.minus, self.writing.symbols["+"]
        said = {"-": minus, "−": minus, "+": plus}.get(sign, "")
        return f"{said} " if said else ""

    def plain(self, match: re.Match[str]) -> str:
        return self.signed(match) + self.amount(match["a"])

    def counted(self, text: str, noun: Unit) -> str:
        """A number and what it counts."""
        text = _with_comma(text)
        if text == "1":
            return noun.one
        said = self.amount(text)
        many = noun.many
        if "," not in text:
            said = self.writing.feminine(said) if noun.feminine else self.writing.before_noun(said)
            many = self.writing.after_millions(many) if _is_millions(text) else many
        return f"{said} {many}"

    def before_word(self, match: re.Match[str]) -> str | None:
        """A number in front of a written-out noun: "1 Stunde", "21 citas"."""
        writing, behind = self.writing, after(match)
        is_label = re.search(rf"\b(?:{writing.number_labels})\s$", before(match), re.IGNORECASE)
        if is_label or "," in _with_comma(match["a"]) or match["a"].startswith("0"):
            return None
        if re.match(writing.feminine_behind, behind, re.IGNORECASE):
            said = writing.feminine(self.amount(match["a"]))
        elif re.match(writing.masculine_behind, behind):
            said = writing.before_noun(self.amount(match["a"]))
        else:
            return None
        return self.signed(match) + said

    def millions(self, match: re.Match[str]) -> str | None:
        """Whole millions and their noun, which some languages join."""
        noun = self.writing.after_millions(match["noun"])
        if noun == match["noun"] or not _is_millions(match["a"]):
            return None
        return f"{self.amount(match['a'])} {noun}"

    def money(self, match: re.Match[str]) -> str:
        currency, amount = self.currencies[match["c"]], match["a"]
        if match.start("c") < match.start("a") and re.fullmatch(r"\d{1,3}(?:,\d{3})+", amount):
            amount = amount.replace(",", "")  # "$1,500"
        whole, _, fraction = _with_comma(amount).partition(",")
        unit = Unit(currency.one, currency.many, currency.feminine)
        if len(fraction) != 2:
            return self.signed(match) + self.counted(amount, unit)
        cents = self.counted(str(int(fraction)), Unit(currency.cent, currency.cents))
        if not whole.strip("0") and int(fraction):
            return self.signed(match) + cents
        said = self.counted(whole, unit)
        if int(fraction):
            amount = self.numbers.cardinal(int(fraction))  # "neun Euro neunzig"
            said = " ".join(part for part in (said, self.writing.sum_joint, amount) if part)
        return self.signed(match) + said

    def scaled_money(self, match: re.Match[str]) -> str:
        """ "$1,5 Mio.": the currency is said behind the scale."""
        scale = self.writing.abbreviations.get(match["scale"], match["scale"])
        amount = self.writing.before_noun(self.amount(match["a"]))
        many = self.writing.after_millions(self.currencies[match["c"]].many)
        return f"{self.signed(match)}{amount} {scale} {many}"

    def code_behind(self, match: re.Match[str]) -> str | None:
        """The currency of "1,5 Mio. USD", "5 millones de EUR"."""
        found = re.search(r"\d\s[^\W\d_]{2,12}\.?\s(?P<of>de\s)?$", before(match))
        if not found:
            return None
        many = self.currencies[match["c"]].many
        return many if found["of"] else self.writing.after_millions(many)

    def division(self, match: re.Match[str]) -> str | None:
        """The mark of "10 / 2 = 5" and "10 : 2 = 5"."""
        return self.writing.symbols["÷"] if re.search(r"[\d)] $", before(match)) else None

    def measure(self, match: re.Match[str]) -> str:
        return self.signed(match) + self.counted(match["a"], self.writing.units[match["u"]])

    def hours_minutes(self, match: re.Match[str]) -> str:
        """ "1h 30m": behind hours an m is minutes."""
        hour, minute = self.writing.units["h"], self.writing.units["min"]
        return f"{self.counted(match['h'], hour)} {self.counted(match['m'].lstrip('0'), minute)}"

    def out_of(self, match: re.Match[str]) -> str:
        """ "4,5/5"."""
        return f"{self.amount(match['a'])} {self.writing.out_of} {self.amount(match['b'])}"

    def zone(self, match: re.Match[str]) -> str:
        """ "UTC-5": the sign of the hours."""
        sign = self.writing.symbols["+"] if match["sign"] == "+" else self.writing.minus
        return f"{' '.join(match['zone'])} {sign}"

    def ratio(self, match: re.Match[str]) -> str:
        """ "2:1", which is no time of day."""
        return f"{self.amount(match['a'])} {self.writing.ratio} {self.amount(match['b'])}"

    def percent(self, match: re.Match[str]) -> str:
        said = self.amount(match["a"])
        return f"{self.signed(match)}{said} {self.writing.percent}"

    def joint(self, match: re.Match[str]) -> str | None:
        """The dash of a range: "10-12", "8:00 - 18:00", "3.5.-7.5."."""
        behind = match.string[match.end() : match.end() + 48]
        left = before(match)
        is_spaced = left.endswith(" ")
        if is_spaced and re.match(DIFFERENCE, match.string[match.start() + 1 : match.end() + 48]):
            return self.writing.minus
        if found := self._plain_begin.search(left):
            is_label = self._label.search(left[: found.start()])
            return None if is_label and len(found["n"]) > 2 else self.writing.range
        for begin, end in self._range_ends:
            if begin.search(left) and (not is_spaced or end.match(behind)):
                return self.writing.range
        return None

    def before_date(self, match: re.Match[str]) -> str:
        """The text before a date, or before the range that it is the end of."""
        return self._first_day.sub("", before(match))

    def day(self, match: re.Match[str]) -> str | None:
        """A date in figures."""
        day, month = int(match["d"]), int(match["m"])
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return None
        return self.writing.date(
            self.numbers, day, month, _year(match["y"]), self.before_date(match)
        )

    def named_day(self, match: re.Match[str]) -> str | None:
        """A date with the month's name: "3. Mai 2024", "1er mai", "3 de mayo de 2024"."""
        day = int(match["d"])
        if not 1 <= day <= 31:
            return None
        month = self.months.get(match["month"].rstrip(".").casefold())
        if month is None:  # `re.IGNORECASE` knows more forms of a letter, such as "aprıl"
            return None
        return self.writing.date(
            self.numbers, day, month, _year(match["y"]), self.before_date(match)
        )

    def weekday(self, match: re.Match[str]) -> str | None:
        """A weekday's short form, "Mo."; with a dash, the begin of a range of days."""
        if not self.weekdays.is_meant(match):
            return None
        said = self.weekdays.names[match["w"]]
        if match["dash"]:
            return f"{said} {self.writing.range}"
        # Where nouns are in lower case, a capital begins a sentence.
        is_over = r"\s*$|\s+[A-ZÀ-Ý¿¡]" if self.writing.months[0].islower() else r"\s*$"
        return said + "." if re.match(is_over, after(match)) else said

    def undotted_weekday(self, match: re.Match[str]) -> str:
        """ "Mo-Fr", "Sa 9-13 Uhr"."""
        names = self.weekdays.names
        end = f" {self.writing.range} {names[match['v']]}" if match["v"] else ""
        return names[match["w"]] + end

    def title(self, match: re.Match[str]) -> str | None:
        if match[0][:-1] in self.weekdays.names and self.weekdays.has_article(before(match)):
            return None
        return self.writing.titles[match[0]]

    def dotted_day(self, match: re.Match[str]) -> str | None:
        """A date without its last dot behind an article: "am 24.12", "el 24/12"."""
        return self.day(match) if self.weekdays.has_article(self.before_date(match)) else None

    def half(self, match: re.Match[str]) -> str:
        """ "1/2", "½ h"."""
        if unit := self.writing.units.get(match["u"]):
            return f"{self.writing.half[unit.feminine]} {unit.one.split(maxsplit=1)[-1]}"
        behind = re.match(self.writing.feminine_behind, after(match), re.IGNORECASE)
        return self.writing.half[behind is not None]

    def and_half(self, match: re.Match[str]) -> str | None:
        """ "1 1/2 Stunden", "2½ kg"; None where the word behind is not what is counted."""
        writing, whole, begin = self.writing, int(match["n"]), match.start("noun") - 1
        if unit := writing.units.get(match["u"]):
            noun = unit.one.split(maxsplit=1)[-1] if whole == 1 else unit.many
            return writing.and_half(self.numbers, whole, noun, unit.feminine)
        behind = match.string[begin : begin + 48]
        is_feminine = re.match(writing.feminine_behind, behind, re.IGNORECASE) is not None
        if not is_feminine and not re.match(writing.masculine_behind, behind):
            return None
        return writing.and_half(self.numbers, whole, match["noun"], is_feminine)

    def bare_and_half(self, match: re.Match[str]) -> str:
        """ "2½" of nothing."""
        return self.writing.and_half(self.numbers, int(match["n"]), "", False)

    def num_times(self, match: re.Match[str]) -> str:
        """ "3x"."""
        return self.counted(match["a"], self.writing.times)

    def fraction(self, match: re.Match[str]) -> str | None:
        """ "3/4"."""
        numerator, denominator = int(match["n"]), int(match["d"])
        if not 0 < numerator < denominator or denominator not in self.writing.fractions:
            return None
        one, many = self.writing.fractions[denominator]
        return one if numerator == 1 else f"{self.numbers.cardinal(numerator)} {many}"

    def dotted(self, match: re.Match[str]) -> str | None:
        """Numbers of an IP address or a version, which are not groups of one number."""
        parts = match[0].split(".")
        is_address = len(parts) == 4 and all(int(part) <= 255 for part in parts)
        if all(len(part) == 3 for part in parts[1:]) and not is_address:
            return None
        if any(part.startswith("0") and len(part) > 1 for part in parts):
            return None  # a telephone number, or thousands
        said = (self.numbers.digits(part) if len(part) > 2 else self.amount(part) for part in parts)
        return f" {self.writing.address['.']} ".join(said)

    def per(self, match: re.Match[str]) -> str | None:
        """The stroke of "9,99 €/Monat", "3 €/kg"."""
        if not self._measured.search(before(match)):
            return None
        noun = self.writing.units[match["u"]].one.split(maxsplit=1)[-1] if match["u"] else ""
        return f"{self.writing.per} {noun}"

    def times(self, match: re.Match[str]) -> str | None:
        """The x of "30 x 20 cm"."""
        return self.writing.symbols["×"] if re.search(r"\d\s?$", before(match)) else None

    def clock(self, match: re.Match[str]) -> str:
        """A time of day."""
        return self.writing.time(self.numbers, int(match["h"]), int(match["min"] or 0))

    def phone(self, match: re.Match[str]) -> str:
        is_foreign = match[0].startswith("+")  # where "(0)" isn't dialled
        groups = re.findall(r"\d+", match[0].replace("(0)", " ") if is_foreign else match[0])
        plus = f"{self.writing.symbols['+']} " if is_foreign else ""
        return plus + ", ".join(self.numbers.digits(group) for group in groups)

    def labelled(self, match: re.Match[str]) -> str | None:
        """A number behind "order number" and its like."""
        return self.phone(match) if self._label.search(before(match)) else None

    def address(self, match: re.Match[str]) -> str:
        """An e-mail or web address."""
        text = re.sub(r"^(?:https?://)?(?:www\.)?", "", match[0])
        said: list[str] = []
        for part in re.findall(r"[^\W\d_]+|\d+|[^\w\s]|_", text):
            if part.isdigit():
                said.append(self.numbers.digits(part) if len(part) > 2 else self.amount(part))
            elif part.isalpha():
                said.append(part)
            elif part in self.writing.address:
                said.append(self.writing.address[part])
        return " ".join(said)

    def capitals(self, match: re.Match[str]) -> str | None:
        """ "ADAC" letter by letter; what is said as a word, or shouted, stays."""
        letters = match[0]
        if letters in self.writing.acronyms_said or len(letters) > 5:
            return letters.lower() if len(letters) > 5 else None
        return " ".join(letters)


def localized_rules(writing: Writing, keypad: Keypad) -> RuleSet:
    """The rules of a language. Raises ModuleNotFoundError where the extra `languages` is not
    installed."""
    reader = _Reader(writing)
    keys = keypad_rules(keypad, reader.numbers.digits)
    own = [_own(each, reader.numbers) for each in writing.rules]
    return RuleSet(
        words=(*_address_rules(reader), *own, *_word_rules(reader)),
        numbers=(
            *keys,
            *_date_rules(reader),
            *_grouped_rules(reader),
            *own,
            *_number_rules(reader),
        ),
        symbols=(*keys, *MARKUP_RULES, *_symbol_rules(reader)),
        cardinal=reader.numbers.cardinal,
    )


def _own(each: SpokenRule, numbers: NumberWords) -> Rule:
    return rule(each.pattern, lambda match: each.speak(match, numbers))


def _address_rules(reader: _Reader) -> list[Rule]:
    host = r"(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}"
    known = r"(?:[A-Za-z0-9-]{1,63}\.){1,6}(?:com|org|net|de|at|ch|es|fr|be|eu|io|info|mx|ca)"
    path = r"(?:/[\w./-]{0,200}[\w/])?(?![\w@])"
    return [
        rule(rf"[A-Za-z0-9][\w.+-]{{0,63}}@{host}(?!\w)", reader.address),
        rule(rf"(?:https?://|www\.){host}{path}", reader.address),
        rule(rf"{known}{path}", reader.address),
    ]


def _word_rules(reader: _Reader) -> list[Rule]:
    writing = reader.writing
    codes = alternatives(code for code in writing.currencies if re.fullmatch("[A-Z]{3}", code))
    scaled = rf"(?P<a>{reader.number})\s(?P<scale>{writing.scales})(?!\w)"
    return [
        rule(r"(?P<zone>UTC|GMT)(?P<sign>[-−–+])(?=\d)", reader.zone),
        rule(reader.weekdays.undotted_pattern, reader.undotted_weekday),
        rule(reader.weekdays.range_pattern, lambda match: f"{match['w']} {writing.range}"),
        rule(reader.weekdays.pattern, reader.weekday),
        rule(_any(writing.titles, r"(?=\s?[A-ZÄÖÜÉÈÀÑ])"), reader.title),
        *_table(writing.abbreviations),
        rule(_any(writing.words, r"(?![\w'’-])"), _lookup(writing.words)),
        rule(r"(?:US|CA|MX)(?=\$\s?\d)", lambda _: ""),
        rule(rf"(?P<sign>)(?P<c>{codes})\s?{scaled}", reader.scaled_money),
        rule(rf"(?P<sign>)(?P<c>{codes})\s?(?P<a>{reader.number})(?!\w)", reader.money),  # "EUR 5"
        rule(rf"(?P<c>{codes})(?!\w)", reader.code_behind),
        rule(r"x(?=\s?\d)", reader.times),
        rule(r"[A-ZÄÖÜÉÈÀÑ]{2,12}(?![^\W\d]|['’-][^\W\d_])", reader.capitals),
    ]


def _table(table: Mapping[str, str]) -> Iterable[Rule]:
    # The dot of an abbreviation that ends the text is a full stop too.
    yield rule(_any(table, r"(?=\s*$)"), partial(_at_end, table))
    names = sorted(table, key=len, reverse=True)
    yield rule("|".join(re.escape(name) + _end_of(name) for name in names), _lookup(table))


def _end_of(name: str) -> str:
    """What may follow a short form, as a lookahead: any text behind a mark ("n°12345"), except
    the rest of initials ("M.B.A."); behind a letter the end of the word."""
    is_marked = not name[-1].isalpha() or name[-1] in "ºª"
    return r"(?![^\W\d_]\.)" if is_marked else r"(?!\w)"


def _at_end(table: Mapping[str, str], match: re.Match[str]) -> str:
    said = table[match[0]]
    return said + "." if match[0].endswith(".") else said


def _date_rules(reader: _Reader) -> list[Rule]:
    counted = alternatives([*reader.currencies, *reader.writing.units, "%", "Uhr"])
    year = r"(?P<y>(?:1[1-9]|20)\d\d)"
    hour = r"(?P<h>[01]?\d|2[0-4])[:.](?P<min>[0-5]\d)"
    later = r"(?:[01]?\d|2[0-4])(?:[:.][0-5]\d)?\s?(?:Uhr|h)(?!\w)"
    return [
        rule(
            rf"(?P<d>\d{{1,2}}){_DAY_LINK}(?P<month>{reader.month_names})(?!\w)(?:\s(?:de\s|del\s)?{year}(?!\d))?",
            reader.named_day,
            re.IGNORECASE,
        ),
        rule(r"(?P<y>(?:19|20)\d\d)-(?P<m>\d\d)-(?P<d>\d\d)(?!\d)", reader.day),
        rule(
            r"(?P<d>\d{1,2})[./](?P<m>\d{1,2})[./](?P<y>(?:19|20)?\d\d)(?![\d./]\d|\d)", reader.day
        ),
        rule(r"(?P<d>\d{1,2})-(?P<m>\d{1,2})-(?P<y>(?:19|20)\d\d)(?![\d-])", reader.day),
        rule(r"(?P<d>[0-3]?\d)\.(?P<m>[01]?\d)\.(?P<y>)(?!\d)", reader.day),
        rule(
            rf"(?P<d>[0-3]?\d)(?:\.(?=\d\d)|/)(?P<m>[01]?\d)(?P<y>)(?![\d./]|,\d|\s?(?:{counted})(?!\w))",
            reader.dotted_day,
        ),
        rule(rf"{hour}\s?(?:Uhr|h)(?!\w)", reader.clock),
        rule(rf"{hour}(?=\s?(?:{DASH}|{reader.writing.weekday_joints})\s?{later})", reader.clock),
        rule(r"(?P<h>[01]?\d|2[0-4]):(?P<min>[0-5]\d)(?![\d:])", reader.clock),
        rule(r"(?P<h>[01]?\d|2[0-4])(?P<min>)\sUhr(?!\w)", reader.clock),
    ]


def _grouped_rules(reader: _Reader) -> list[Rule]:
    """Rules of what is no single number: telephone and order numbers, addresses, fractions."""
    end = r"(?![\w-]|[.,/ ]\d)"
    counted = alternatives([*reader.currencies, *reader.writing.units, "%"])
    units = alternatives(reader.writing.units)
    half_more = r"(?P<n>\d{1,3})(?:\s?½|\s1/2(?![\d/]|[.,]\d))"
    no_sum = rf"(?!\s?(?:{alternatives(reader.currencies)})(?!\w))"
    # Where a blank parts thousands, three groups of three digits are a number.
    threes = "" if re.match(reader.writing.groups, " ") else r"|\d{3} \d{3} (?!000)\d{3}"
    return [
        rule(rf"\d{{1,3}}(?:\.\d{{1,3}}){{2,}}(?!\d|\.\d){no_sum}", reader.dotted),
        rule(rf"\d{{1,9}}(?:-\d{{1,9}}){{2,8}}{end}", reader.phone),
        rule(rf"\d{{4}}(?: \d{{4}}){{2,5}}(?: \d{{1,4}})?{end}{no_sum}", reader.phone),
        rule(
            rf"(?:\d{{3}}(?: \d\d){{3}}|\d\d \d{{3}} \d\d \d\d{threes}){end}{no_sum}", reader.phone
        ),
        rule(
            r"(?=\d{3}|\d\d[- ]\d)\d{2,16}(?: \d{2,16}|-\d{1,16}){0,6}"
            rf"(?!(?:[,.:]| \d)?\d|\s?(?:{counted})(?!\w))",
            reader.labelled,
        ),
        rule(
            r"(?:(?<=[^\W\d_])|(?<=[^\W\d_]-))(?!(?:19|20)\d\d(?!\d))\d{3,16}(?:-\d{1,16}){0,6}"
            rf"(?!(?:[,.:])?\d|\s?(?:{counted})(?!\w))",
            reader.phone,
        ),
        rule(rf"{CODE_PAIR}(?!\s?(?:{counted})(?!\w))", reader.phone),
        rule(r"(?P<a>\d{1,3}[.,]\d{1,2})/(?P<b>5|10|20|100)(?![\d/]|[.,]\d)", reader.out_of),
        rule(
            rf"{half_more}(?:\s?(?P<u>{units})|\s(?P<noun>[^\W\d_]{{2,24}}))(?!\w)", reader.and_half
        ),
        rule(half_more, reader.bare_and_half),
        rule(r"(?<!:)(?P<a>\d{1,3}):(?P<b>\d{1,3})(?![\d:])", reader.ratio),
        rule(rf"(?:½|1/2(?![\d/]|[.,]\d))(?:\s?(?P<u>{units})(?!\w))?", reader.half),
        rule(r"(?P<n>[1-9]\d?)/(?P<d>[1-9]\d?)(?![\d/]|[.,]\d)", reader.fraction),
    ]


def _number_rules(reader: _Reader) -> list[Rule]:
    writing, number, sign = reader.writing, reader.number, reader.sign
    currency = alternatives(reader.currencies)
    symbols = "".join(each for each in writing.currencies if not each.isalnum())
    units = alternatives(writing.units)
    prefix = rf"{sign}(?P<c>[{re.escape(symbols)}])\s?"
    thousands = r"\d{1,3}(?:,\d{3})+(?!\d|[.,]\d)"
    return [
        rule(rf"{prefix}(?P<a>{number})\s(?P<scale>{writing.scales})(?!\w)", reader.scaled_money),
        rule(rf"{sign}(?P<a>{number})\s?(?P<c>{currency})(?!\w)", reader.money),
        rule(rf"{sign}(?P<a>\d+),[-–]{{1,2}}\s?(?P<c>{currency})(?!\w)", reader.money),  # "80,- €"
        rule(rf"{prefix}(?P<a>{thousands}|{number})", reader.money),
        rule(r"\+\d{1,3}(?:[-. /]?\(?\d{1,5}\)?){2,6}(?![\w-])", reader.phone),
        rule(
            rf"(?!0\d ?{DASH} ?\d\d(?!\d|[-./ ]\d))0\d{{1,5}}"  # "08-12 Uhr"
            r"(?:(?:\)? ?[-/] ?|\) ?|[. ])\d{2,8}){1,5}(?:-\d)?(?![\w-]|,\d)",
            reader.phone,
        ),
        rule(r"0 \d{3}(?: \d{2,3}){2,3}(?![\w-]|,\d)", reader.phone),
        rule(rf"{sign}(?P<a>{number})\s?%", reader.percent),
        rule(
            r"(?P<h>\d{1,3})\s?(?:h|Std\.)\s?(?P<m>[1-5]\d|0?[1-9])\s?m(?:in)?(?![\w²³/])",
            reader.hours_minutes,
        ),
        rule(rf"{sign}(?P<a>{number})\s?(?P<u>{units})(?![\w²³])", reader.measure),
        rule(rf"(?P<a>{number})\s?[x×](?!\w|\s?\d)", reader.num_times),
        rule(rf"(?P<a>{number})\s(?P<noun>[^\W\d_]+)(?![\w@'’-]|\.\w)", reader.millions),
        rule(rf"{sign}(?P<a>{number})(?=\s[^\W\d_])", reader.before_word),
        rule(rf"{sign}(?P<a>{number})", reader.plain),
    ]


def _symbol_rules(reader: _Reader) -> list[Rule]:
    writing = reader.writing
    return [
        rule(rf"{DASH}\s?(?=[$£€]?\d)", reader.joint),
        rule(rf"[/:](?={DIFFERENCE})", reader.division),
        rule(rf"/\s?(?:(?P<u>{alternatives(writing.units)})(?!\w)|(?=[^\W\d_]{{2}}))", reader.per),
        rule(_any(writing.symbols, ""), _lookup(writing.symbols)),
        rule(r"[^\w\s.,;:!?…()\[\]{}—–―|、。，；：！？-]", lambda _: ""),
    ]


def _any(table: Mapping[str, str], behind: str) -> str:
    return rf"(?:{alternatives(table)}){behind}" if table else r"(?!)"


def _lookup(table: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda match: table[match[0]]


def _with_comma(text: str) -> str:
    """A number with a decimal point, "1,234.50", in the form with a comma."""
    point = re.fullmatch(r"(.+)\.(\d{1,2})", text)
    return re.sub(r"\D", "", point[1]) + "," + point[2] if point else text


def _is_millions(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    return (
        "," not in _with_comma(text)
        and 6 < len(digits) <= _MAX_CARDINAL_DIGITS
        and digits.endswith("0" * 6)
        and not digits.startswith("0")
    )


def _year(text: str) -> int | None:
    if not text:
        return None
    year = int(text)
    return year if len(text) == 4 else year + (2000 if year <= 40 else 1900)
