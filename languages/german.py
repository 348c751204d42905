"""German: sentences, words of turn-taking, and how numbers and dates are read."""

import re
from typing import Final

from . import roman
from .profile import (
    Currency,
    Keypad,
    LanguageProfile,
    Numbers,
    Sentences,
    SpokenRule,
    TurnWords,
    Unit,
    Writing,
    phrase_set,
    phrases,
    word_set,
)

MONTHS: Final = (
    *("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September"),
    *("Oktober", "November", "Dezember"),
)

_WEAK: Final = r"\b(?:am|vom|zum|im|beim|dem|den|des|ab|bis|seit|zur|einem|einen|jeden|ihrem)\s$"
"""After these an ordinal ends in -n."""
_PLACED: Final = r"\b(?:in|an|auf|mit|bei|von|zu|aus|nach|vor|seit)\s(?:der|den|die)\s$"
_ARTICLE: Final = r"\b(?:der|die|das|diese|dieser|dieses|jede|jeder|jedes)\s$"
_BEFORE_ORDINAL: Final = (
    r"(?:am|vom|zum|zur|im|beim|dem|den|des|der|die|das|ab|bis|seit|ein|eine|einem|einen)"
)


_BEFORE_LAST: Final = r"\b(?:der|den|dem|am|vom|zum)\s$"
_STRONG: Final = {
    "Stock": "r",
    "Stockwerk": "s",
    "Obergeschoss": "s",
    "Untergeschoss": "s",
    "OG": "s",
    "UG": "s",
    "Etage": "",
    "Klasse": "",
}
"""Ending of an ordinal in front of each noun, where no article stands before."""


def _ordinal(numbers: Numbers, value: int, before: str) -> str:
    """An ordinal with the ending that the words before it ask for."""
    plain = numbers.ordinal(value)
    if re.search(_WEAK, before, re.IGNORECASE) or re.search(_PLACED, before, re.IGNORECASE):
        return plain + "n"
    return plain if re.search(_ARTICLE, before, re.IGNORECASE) else plain + "r"


def _date(numbers: Numbers, day: int, month: int, year: int | None, before: str) -> str:
    said = f"{_ordinal(numbers, day, before)} {MONTHS[month - 1]}"
    return said if year is None else f"{said} {numbers.year(year)}"


def _time(numbers: Numbers, hour: int, minute: int) -> str:
    hours = f"{'ein' if hour == 1 else numbers.cardinal(hour)} Uhr"
    return f"{hours} {numbers.cardinal(minute)}" if minute else hours


def _ordinal_dot(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "der 3. Platz": a dot behind a number makes an ordinal of it after an article, or at both
    ends of a range; at the end of a line after fewer words."""
    before = match.string[max(0, match.start() - 48) : match.start()]
    outside = re.sub(r"\d{1,3}\.\s?[-–/]\s?$", "", before)
    is_range = outside != before or match["later"]
    if not is_range and not re.search(rf"\b{_BEFORE_ORDINAL}\s$", before, re.IGNORECASE):
        return None
    if match["last"] is not None and not re.search(_BEFORE_LAST, before, re.IGNORECASE):
        return None
    return _ordinal(numbers, int(match["n"]), outside) + ("" if match["last"] is None else ".")


def _placed(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "2. Stock", "in 2. Klasse": without an article the ending is a strong one."""
    before = match.string[max(0, match.start() - 48) : match.start()]
    if re.search(rf"\b{_BEFORE_ORDINAL}\s$", before, re.IGNORECASE):
        return None
    ending = _STRONG[match["noun"]]
    if re.search(r"\b(?:in|ab|mit|von|zu|bei|aus|nach)\s$", before, re.IGNORECASE):
        ending = "m" if ending else "r"
    return numbers.ordinal(int(match["n"])) + ending


def _group_of(match: re.Match[str], numbers: Numbers) -> str:
    """ "die 1990er", "90er Jahre", "10er-Karte"."""
    value = int(match["n"])
    said = numbers.year(value) if 1100 <= value < 2100 else numbers.cardinal(value)
    return said + "er"


def _street(match: re.Match[str], numbers: Numbers) -> str:
    return match["stem"] + match["s"] + "traße" + _stop(match)


def _postcode(match: re.Match[str], numbers: Numbers) -> str:
    return " ".join(numbers.cardinal(int(digit)) for digit in match[0])


def _number_of(match: re.Match[str], numbers: Numbers) -> str:
    return match["stem"] + "nummer" + _stop(match)


def _stop(match: re.Match[str]) -> str:
    """A short form's dot at the end of the text is a full stop too."""
    return "" if match.string[match.end() : match.end() + 8].strip() else "."


def _year(match: re.Match[str], numbers: Numbers) -> str:
    """A number like a year's, alone, is said like one: "neunzehnhundertneunundneunzig"."""
    return numbers.year(int(match[0]))


def _one_million(match: re.Match[str], numbers: Numbers) -> str:
    said = {"Mio": "eine Million", "Mrd": "eine Milliarde"}[match["m"]]
    return said + _stop(match)


_FEMININE_NOUN: Final = (
    r"\w*(?:stunde|minute|sekunde|woche|frage|sache|tasse|flasche|seite|karte|milliarde|tonne|meile|"
    r"aufgabe|stelle|reihe|etage|kugel|dose|kiste|runde|straße|stimme|bestellnummer|nummer|adresse|"
    r"pause|e-mail|rufnummer|taste|zeile|spalte|tabelle|ecke|box|tüte|scheibe|prise|probe|liste)n?\b"
    r"|\w*(?:nacht|nachricht|person|firma|hand|stadt|mail|uhrzeit|mahlzeit|bank|auskunft|antwort)"
    r"(?:en)?\b"
    r"|\w+(?:ung|heit|keit|schaft|tät|ion|erin)(?:en)?\b"
)
_LABELS: Final = (
    r"Gleis|Nummer|Nr\.|Zimmer|Platz|Kapitel|Seite|Raum|Tor|Linie|Stufe|Option|Taste|Version|Schritt|"
    r"Teil|Punkt|Halle|Haus|Etage|Block|Spur|Bus|Artikel|Absatz|Typ|Klasse|Phase|Level|Ziffer|Stock|"
    r"\w{2,30}(?:straße|str\.|weg|allee|gasse|platz)"
)
"""Words with a number of their own."""


_FEMININE_BEHIND: Final = rf"\s(?:\w{{1,20}}en?\s)?(?:{_FEMININE_NOUN})"
_NOUN_BEHIND: Final = (
    r"\s(?:[a-zäöüß]{1,20}(?:er|es|en)\s)?(?!(?:Std|Min|Mio|Mrd|Uhr)\b)[A-ZÄÖÜ][a-zäöüß]"
)


def _one_in_dative(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "in 1 Woche", "vor 1 Monat"."""
    begin, end = match.span()
    before, behind = match.string[max(0, begin - 12) : begin], match.string[end : end + 48]
    if not re.search(r"\b(?:in|vor|nach|seit|mit|von|zu|bei|aus)\s$", before, re.IGNORECASE):
        return None
    if re.match(_FEMININE_BEHIND, behind, re.IGNORECASE):
        return "einer"
    return "einem" if re.match(_NOUN_BEHIND, behind) else None


_AMOUNT_BEHIND: Final = (
    r"\s?(?:Std\.|Min\.|Mio\b|Mrd\b|(?:h|min|s|kg|g|mg|km|cm|mm|m|l|ml|GB|MB)\b|[€$£%°])"
)


def _one_of_range(match: re.Match[str], numbers: Numbers) -> str | None:
    """The one of "1 bis 2 Stunden", "1-2 kg"."""
    begin, end = match.span()
    before, behind = match.string[max(0, begin - 48) : begin], match.string[end:]
    if re.search(rf"(?:[\w.,:/€$£-]|\b(?:{_LABELS})\s)$", before, re.IGNORECASE):
        return None
    second = re.match(r"\s?(?:bis|oder|[-–])\s?\d{1,3}(?![\d.,:/])", behind)
    if second is None:
        return None
    counted = behind[second.end() : second.end() + 48]
    is_amount = re.match(_AMOUNT_BEHIND, counted) or re.match(_NOUN_BEHIND, counted)
    return "ein" if is_amount or re.match(_FEMININE_BEHIND, counted, re.IGNORECASE) else None


_CHANGE: Final = (
    r"gestiegen|gesunken|gefallen|gewachsen|erhöht|gesenkt|reduziert|angehoben|teurer|billiger|"
    r"günstiger|höher|niedriger|größer|kleiner|länger|kürzer|mehr|weniger|besser|schneller|"
    r"Prozent|Punkte?|Euro|EUR|Franken|CHF|Dollar|USD|Mio|Mrd|Millionen|Milliarden"
)


_CHANGES: Final = (
    r"(?i:steig|stieg|sink|sank|fällt|fallen|fiel|wuchs|wächst|erhöh|senk|reduzier|teuer|billig|kürz|"
    r"verlänger|änder|nahm|nimmt|kurs|preis|wert|index|gebühr|miete|\bzins)[^.!?]{0,60}$"
)
"""Text before the "um" of a change."""


def _pointed_time(match: re.Match[str], numbers: Numbers) -> str | None:
    """A time of day as "um 14.30", without "Uhr". By how much something changes is none."""
    begin, end = match.span()
    before, behind = match.string[max(0, begin - 64) : begin], match.string[end : end + 24]
    if not re.search(r"\b(?:um|gegen)\s$", before, re.IGNORECASE) or re.search(_CHANGES, before):
        return None
    if re.match(rf"\s?(?:{_CHANGE})\b", behind) or re.match(_AMOUNT_BEHIND, behind):
        return None
    return _time(numbers, int(match["h"]), int(match["m"]))


_RULERS: Final = (
    r"Ludwig|Heinrich|Karl|Friedrich|Wilhelm|Otto|Georg|Johannes Paul|Johannes|Johann|Paul|Pius|"
    r"Benedikt|Leo|Gregor|Franz|Ferdinand|Maximilian|Leopold|Albert|Philipp|Peter|Alexander|"
    r"Nikolaus|Napoleon|Eduard|Jakob|Konrad|Rudolf|Gustav|Christian|Ramses|Richard|Innozenz|Urban|"
    r"Clemens|Julius|Alfons|Joseph"
)
_QUEENS: Final = r"Elisabeth|Katharina|Maria|Margarethe|Kleopatra|Isabella"
_RULER: Final = rf"(?:(?:{_RULERS}) )?(?:(?:{_RULERS})|(?P<queen>{_QUEENS}))"
_CROWNED: Final = r"\b(?:König|Kaiser|Papst|Zar|Fürst|Herzog|Sultan|Königin|Kaiserin|Zarin)s?\s$"


def _ruler(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "Ludwig XIV.", "unter Elisabeth II.", "Karls V."."""
    begin, end = match.span()
    before = match.string[max(0, begin - 32) : begin]
    crown = re.search(_CROWNED, before)
    if len(match["r"]) == 1 and crown is None:
        return None  # the initial of a surname
    before = before if crown is None else before[: crown.start()]
    if match["of"]:
        article = "der" if match["queen"] else "des"
    elif re.search(r"\b(?:von|mit|unter|bei|nach|zu|seit|aus|vom|zum|neben)\s$", before, re.I):
        article = "der" if match["queen"] else "dem"
    elif re.search(r"\b(?:für|gegen|durch|über|ohne|um)\s$", before, re.I):
        article = "die" if match["queen"] else "den"
    else:
        article = "die" if match["queen"] else "der"
    ordinal = numbers.ordinal(roman.value_of(match["r"])).capitalize()
    is_weak = match["of"] or article in ("dem", "den") or (match["queen"] and article == "der")
    goes_on = r"\s+\S" if match["of"] else r"\s+[a-zäöüß(]|\s*,"
    is_over = match["dot"] and not re.match(goes_on, match.string[end : end + 8])
    said = f"{match['head']} {article} {ordinal}{'n' if is_weak else ''}"
    return said + "." if is_over else said


def _numbered(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "Kapitel IV"; an X alone may be any."""
    if match["r"] == "X":
        return None
    return f"{match['head']} {numbers.cardinal(roman.value_of(match['r']))}"


def _roman_ordinal(match: re.Match[str], numbers: Numbers) -> str:
    """ "im XIX. Jahrhundert"."""
    before = match.string[max(0, match.start() - 48) : match.start()]
    return _ordinal(numbers, roman.value_of(match["r"]), before)


def _before_noun(spoken: str) -> str:
    return spoken[:-1] if spoken.endswith("eins") else spoken


def _feminine(spoken: str) -> str:
    return "eine" if spoken == "eins" else _before_noun(spoken)


def _and_half(numbers: Numbers, whole: int, noun: str, is_feminine: bool) -> str:
    """ "eineinhalb Stunden"."""
    return f"{_before_noun(numbers.cardinal(whole))}einhalb {noun}".rstrip()


PROFILE: Final = LanguageProfile(
    code="de",
    name="German",
    voice="pico-de",
    keypad=Keypad(
        "Stern",
        "Raute",
        verbs="Sie|drücke|drück|wähle|tippe",
        links="bitte|die|der|mit|von|dann|danach|anschließend|oder|Taste",
        nouns="Taste|Zeichen",
    ),
    answer_in="Antworte immer auf Deutsch.",
    sentences=Sentences(
        apology="Entschuldigung, bei mir ist etwas schiefgegangen. Können Sie das noch einmal "
        "sagen?",
        idle_prompt="Sind Sie noch da?",
        tool_wait="Einen Moment bitte.",
        openers=("Einen Moment,", "Mal sehen,", "Also,"),
        limit_notice="Wir müssen dieses Gespräch in einer halben Minute beenden.",
        announcement="Dieses Gespräch wird aufgezeichnet.",
        transfer_unanswered="Es tut mir leid, dort antwortet niemand. Was kann ich sonst für Sie "
        "tun?",
        calibration="So laut spreche ich gewöhnlich, wenn mich niemand bittet, lauter zu sprechen.",
    ),
    turn_words=TurnWords(
        backchannels=phrases(
            "mm; mhm; mmhm; hm; hmm; aha; ah; ach; ach so; oh; ja; jaja; jo; jep; genau; okay; ok; "
            "gut; sehr gut; schön; klar; alles klar; stimmt; richtig; verstehe; ich verstehe; "
            "natürlich; super; toll; prima; wirklich; ach ja; na gut; danke; vielen dank; eben"
        ),
        interruptions=word_set(
            "stopp stop halt warte warten moment nein nee aber was wie bitte sorry "
            "entschuldigung hallo doch nicht"
        ),
        dangling=word_set(
            "und oder aber weil dass ob wenn als denn sondern sowie äh ähm öh mein "
            "meine meinen meinem meiner unser unsere ein eine einen einem einer der dem den des im "
            "am vom zum zur beim für ohne gegen durch wegen sehr zwischen bis jede jeder jeden"
        ),
        digits=word_set("null eins zwei zwo drei vier fünf sechs sieben acht neun"),
    ),
    spoken_openers=phrase_set(
        "ja, nein, klar, gut, okay, gern, gerne, sehr gern, sehr gerne, natürlich, "
        "selbstverständlich, alles klar, genau, richtig, also, nun, tja, hallo, guten tag, "
        "guten morgen, guten abend, danke, vielen dank, bitte, verstanden, ich verstehe, "
        "entschuldigung, es tut mir leid, tut mir leid, leider, einen moment, moment, mal sehen, "
        "schön, super, perfekt, prima"
    ),
    phrase_starts=word_set(
        "und oder aber weil dass ob wenn als für mit von zu in an auf bei nach um "
        "über unter vor während damit sondern bis seit ohne durch"
    ),
    writing=Writing(
        number_words="de",
        groups=r"[.'’\u00a0\u202f]",
        decimal="Komma",
        minus="minus",
        percent="Prozent",
        range="bis",
        per="pro",
        out_of="von",
        ratio="zu",
        months=MONTHS,
        weekdays={
            "Mo": "Montag",
            "Di": "Dienstag",
            "Mi": "Mittwoch",
            "Do": "Donnerstag",
            "Fr": "Freitag",
            "Sa": "Samstag",
            "So": "Sonntag",
        },
        weekday_articles="am|vom|zum|bis|ab|jeden|diesen|nächsten|kommenden|den",
        weekday_links="um|ab|von|bis|gegen|zwischen|nach|vor",
        weekday_joints=r"[-–/,&+]|bis|und|oder|u\.|o\.|bis zum|auf",
        month_abbreviations={
            "Jan": 1,
            "Feb": 2,
            "Mär": 3,
            "Apr": 4,
            "Jun": 6,
            "Jul": 7,
            "Aug": 8,
            "Sep": 9,
            "Sept": 9,
            "Okt": 10,
            "Nov": 11,
            "Dez": 12,
        },
        date=_date,
        time=_time,
        currencies={
            "€": Currency("ein Euro", "Euro", "ein Cent", "Cent"),
            "EUR": Currency("ein Euro", "Euro", "ein Cent", "Cent"),
            "$": Currency("ein Dollar", "Dollar", "ein Cent", "Cent"),
            "USD": Currency("ein Dollar", "Dollar", "ein Cent", "Cent"),
            "£": Currency("ein Pfund", "Pfund", "ein Penny", "Pence"),
            "GBP": Currency("ein Pfund", "Pfund", "ein Penny", "Pence"),
            "CHF": Currency("ein Franken", "Franken", "ein Rappen", "Rappen"),
            "Fr": Currency("ein Franken", "Franken", "ein Rappen", "Rappen"),
        },
        sum_joint="",
        scales=r"Mio\.|Mrd\.|Millionen|Milliarden",
        half=("ein halb", "eine halbe"),
        and_half=_and_half,
        times=Unit("einmal", "mal"),
        fractions={
            3: ("ein Drittel", "Drittel"),
            4: ("ein Viertel", "Viertel"),
            5: ("ein Fünftel", "Fünftel"),
            6: ("ein Sechstel", "Sechstel"),
            8: ("ein Achtel", "Achtel"),
            10: ("ein Zehntel", "Zehntel"),
        },
        units={
            "km/h": Unit("ein Kilometer pro Stunde", "Kilometer pro Stunde"),
            "kWh": Unit("eine Kilowattstunde", "Kilowattstunden", feminine=True),
            "km": Unit("ein Kilometer", "Kilometer"),
            "cm": Unit("ein Zentimeter", "Zentimeter"),
            "mm": Unit("ein Millimeter", "Millimeter"),
            "m": Unit("ein Meter", "Meter"),
            "kg": Unit("ein Kilogramm", "Kilogramm"),
            "g": Unit("ein Gramm", "Gramm"),
            "mg": Unit("ein Milligramm", "Milligramm"),
            "l": Unit("ein Liter", "Liter"),
            "ml": Unit("ein Milliliter", "Milliliter"),
            "h": Unit("eine Stunde", "Stunden", feminine=True),
            "Std.": Unit("eine Stunde", "Stunden", feminine=True),
            "min": Unit("eine Minute", "Minuten", feminine=True),
            "Min.": Unit("eine Minute", "Minuten", feminine=True),
            "s": Unit("eine Sekunde", "Sekunden", feminine=True),
            "°C": Unit("ein Grad", "Grad"),
            "℃": Unit("ein Grad", "Grad"),
            "k€": Unit("tausend Euro", "tausend Euro"),
            "kW": Unit("ein Kilowatt", "Kilowatt"),
            "W": Unit("ein Watt", "Watt"),
            "V": Unit("ein Volt", "Volt"),
            "°": Unit("ein Grad", "Grad"),
            "GB": Unit("ein Gigabyte", "Gigabyte"),
            "MB": Unit("ein Megabyte", "Megabyte"),
            "m²": Unit("ein Quadratmeter", "Quadratmeter"),
        },
        abbreviations={
            "z.B.": "zum Beispiel",
            "z. B.": "zum Beispiel",
            "d.h.": "das heißt",
            "d. h.": "das heißt",
            "u.a.": "unter anderem",
            "u. a.": "unter anderem",
            "usw.": "und so weiter",
            "etc.": "et cetera",
            "bzw.": "beziehungsweise",
            "ca.": "circa",
            "evtl.": "eventuell",
            "ggf.": "gegebenenfalls",
            "i.d.R.": "in der Regel",
            "i. d. R.": "in der Regel",
            "bzgl.": "bezüglich",
            "tägl.": "täglich",
            "exkl.": "exklusive",
            "inkl.": "inklusive",
            "MwSt.": "Mehrwertsteuer",
            "zzgl.": "zuzüglich",
            "vgl.": "vergleiche",
            "Dr.": "Doktor",
            "Prof.": "Professor",
            "Nr.": "Nummer",
            "p.a.": "pro Jahr",
            "p. a.": "pro Jahr",
            "Pers.": "Personen",
            "Abs.": "Absatz",
            "Art.-Nr.": "Artikelnummer",
            "Kd.-Nr.": "Kundennummer",
            "Tel.-Nr.": "Telefonnummer",
            "Tel.": "Telefon",
            "Hbf.": "Hauptbahnhof",
            "Str.": "Straße",
            "str.": "straße",
            "Mio.": "Millionen",
            "Mrd.": "Milliarden",
            "Tsd.": "Tausend",
            "St.": "Sankt",
            "max.": "maximal",
            "min.": "mindestens",
            "o.k.": "okay",
        },
        titles={"Hr.": "Herr", "Fr.": "Frau"},
        symbols={
            "&": "und",
            "+": "plus",
            "=": "gleich",
            "@": "at",
            "%": "Prozent",
            "€": "Euro",
            "$": "Dollar",
            "£": "Pfund",
            "°": "Grad",
            "§": "Paragraf",
            "×": "mal",
            "÷": "geteilt durch",
            "½": "ein halb",
            "¼": "ein Viertel",
            "¾": "drei Viertel",
            "#": "Nummer",
            "→": "zu",
        },
        words={
            "OK": "okay",
            "Ok": "okay",
            "ok": "okay",
            "MwSt": "Mehrwertsteuer",
            "Hbf": "Hauptbahnhof",
            "EG": "Erdgeschoss",
            "OG": "Obergeschoss",
            "UG": "Untergeschoss",
        },
        acronyms_said=word_set("PIN SIM NATO NASA TÜV BAFÖG COVID AIDS APP"),
        code_labels=(
            r"\w{0,24}nummer|\w{0,24}nr\.|PIN|Code|Postleitzahl|PLZ|Vorwahl|Durchwahl|Aktenzeichen|IBAN|endet\sauf"
        ),
        address={
            ".": "Punkt",
            "-": "Minus",
            "_": "Unterstrich",
            "/": "Schrägstrich",
            "@": "at",
            "+": "plus",
        },
        rules=(
            SpokenRule(rf"(?P<n>\d{{1,3}})\.(?=\s(?P<noun>{'|'.join(_STRONG)})\b)", _placed),
            SpokenRule(
                r"(?P<n>\d{1,3})\.(?:(?=\s[A-Za-zÄÖÜäöü])|(?=(?P<later>\s?[-–/]\s?\d{1,3}\.))"
                r"|(?P<last>)(?=[ \t]*(?:\n|\Z)))",
                _ordinal_dot,
            ),
            SpokenRule(r"(?P<n>\d{1,4})er(?![^\W\d_])", _group_of),
            SpokenRule(r"(?P<stem>[A-Za-zÄÖÜäöüß-]{2,40})(?P<s>[Ss])tr\.", _street),
            SpokenRule(r"(?P<stem>[A-Za-zÄÖÜäöüß]{2,40})-?[Nn]r\.", _number_of),
            SpokenRule(r"1\s(?P<m>Mio|Mrd)\.", _one_million),
            SpokenRule(r"1(?=\s?(?:bis|oder|[-–])\s?\d)", _one_of_range),
            SpokenRule(r"1(?=\s[^\W\d_])", _one_in_dative),
            SpokenRule(r"(?P<h>[01]?\d|2[0-4])\.(?P<m>[0-5]\d)(?![\d:/]|[.,]\d)", _pointed_time),
            SpokenRule(
                rf"(?P<head>{_RULER}(?P<of>s)?)\s(?P<r>{roman.NUMERAL})(?P<dot>\.(?!\w))?", _ruler
            ),
            SpokenRule(
                r"(?P<head>Kapitel|Band|Teil|Akt|Abschnitt|Artikel|Szene|Anhang|Buch)\s"
                rf"(?P<r>{roman.NUMERAL})(?![-'’]\w)",
                _numbered,
            ),
            SpokenRule(
                rf"(?P<r>{roman.NUMERAL})\.(?=\s(?:Jahrhundert|Weltkrieg|Akt|Kapitel)s?\b)",
                _roman_ordinal,
            ),
            SpokenRule(r"(?<=, )(?!\d\d000)\d{5}(?=\s[A-ZÄÖÜ][a-zäöüß])", _postcode),
            SpokenRule(
                r"1[1-9]\d\d(?![\d/]|-(?!(?:19|20)\d\d(?!\d))|[.,:]\d|\s?[%€$£]|\s?(?:Euro|EUR|kg|km|m|g)\b)",
                _year,
            ),
        ),
        ordinal_nouns=frozenset(_STRONG),
        unfinished=(
            rf"(?:\b{_BEFORE_ORDINAL}\s\d{{1,3}}|,\s\d{{1,2}}"
            rf"|\b(?:{_RULERS}|{_QUEENS})s?\s[IVX]{{1,7}}|\b{_BEFORE_ORDINAL}\s[IVX]{{1,7}})\.$"
        ),
        feminine=_feminine,
        before_noun=_before_noun,
        feminine_behind=_FEMININE_BEHIND,
        masculine_behind=_NOUN_BEHIND,
        number_labels=_LABELS,
    ),
)
