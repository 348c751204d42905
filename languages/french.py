"""French: sentences, words of turn-taking, and how numbers and dates are read."""

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
    *("janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre"),
    *("octobre", "novembre", "décembre"),
)


def _date(numbers: Numbers, day: int, month: int, year: int | None, before: str) -> str:
    first = "premier" if day == 1 else numbers.cardinal(day)
    said = f"{first} {MONTHS[month - 1]}"
    return said if year is None else f"{said} {numbers.year(year)}"


def _time(numbers: Numbers, hour: int, minute: int) -> str:
    if hour in (0, 12) and minute == 0:
        return "minuit" if hour == 0 else "midi"
    hours = f"{_feminine(numbers.cardinal(hour))} {'heure' if hour < 2 else 'heures'}"
    return f"{hours} {_feminine(numbers.cardinal(minute))}" if minute else hours


def _clock(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "14h30", "8 h": the h of the hours."""
    return _time(numbers, int(match["h"]), int(match["m"] or 0))


def _duration(match: re.Match[str], numbers: Numbers) -> str:
    """ "1h30min", "1h 30m"."""
    return _time(numbers, int(match["h"]), int(match["m"]))


def _all_of(match: re.Match[str], numbers: Numbers) -> str:
    """ "24h/24", "7j/7", "20/20"."""
    number = numbers.cardinal(int(match["n"]))
    noun = {"h": "heures", "j": "jours"}.get((match["u"] or "")[:1], "")
    return " ".join(part for part in (number, noun, "sur", number) if part)


def _feminine(spoken: str) -> str:
    return re.sub(r"\bun$", "une", spoken)


def _after_millions(noun: str) -> str:
    if noun in ("de", "d", "et"):
        return noun
    return f"d'{noun}" if noun[0].lower() in "aeiouyhéèêâîôœ" else f"de {noun}"


_FEMININE_NOUN: Final = (
    r"(?:heure|minute|seconde|semaine|année|journée|soirée|matinée|demi-heure|personne|nuit|table|chambre|"
    r"tonne|page|carte|facture|commande|bouteille|boîte|pièce|unité|tâche|offre|photo|lettre|"
    r"réponse|entreprise|ville|voiture|adresse|demande|tasse|ligne|liste|étape|erreur|visite|tranche|"
    r"cuillère|maison|porte|fenêtre|touche|copie|possibilité|nouvelle|disponibilité)s?\b"
    r"|fois\b|\w+[ts]ions?\b"
)
_NO_NOUN: Final = (
    r"de|du|des|et|ou|à|au|aux|en|est|sont|pour|par|sur|sous|dans|avec|sans|que|qui|si|mais|par|"
    r"plus|moins|environ|chez|vers|avant|après|le|la|les|un|une|il|elle|on|nous|vous|ils|elles|je"
)
_LABELS: Final = (
    r"option|numéro|n°|quai|chambre|voie|page|chapitre|ligne|étape|version|étage|table|salle|bus|partie|"
    r"type|phase|niveau|article|porte|touche"
)
"""Words with a number of their own."""


def _ordinal(match: re.Match[str], numbers: Numbers) -> str | None:
    if match["e"] in ("re", "ère"):
        return "première" if match["n"] == "1" else None
    return numbers.ordinal(int(match["n"]))


_KINGS: Final = (
    r"Louis-Philippe|Louis|Charles|Henri|François|Philippe|Napoléon|Jean-Paul|Jean|Paul|Pie|Benoît|"
    r"Léon|Grégoire|Innocent|Urbain|Clément|Jules|Guillaume|Frédéric|Georges?|Édouard|Nicolas|"
    r"Alexandre|Ramsès|Jacques|Richard|Albert|Léopold|Baudouin|Ferdinand|Alphonse"
)
_QUEENS: Final = r"Élisabeth|Elisabeth|Elizabeth|Catherine|Marie|Marguerite|Cléopâtre|Isabelle"


def _ruler(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "Louis XIV", a number, but "François Ier"."""
    if match["first"]:
        return f"{match['head']} {'première' if match['queen'] else 'premier'}"
    if roman.is_initial(match):
        return None
    return f"{match['head']} {numbers.cardinal(roman.value_of(match['r']))}"


def _numbered(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "chapitre IV"; an X alone may be any."""
    if match["r"] == "X":
        return None
    return f"{match['head']} {numbers.cardinal(roman.value_of(match['r']))}"


def _roman_ordinal(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "XIXe siècle", "Ve République"."""
    numeral = re.fullmatch(roman.NUMERAL, match["r"])
    return None if numeral is None else numbers.ordinal(roman.value_of(match["r"]))


def _and_half(numbers: Numbers, whole: int, noun: str, is_feminine: bool) -> str:
    """ "une heure et demie", "deux kilos et demi"; "un et demi" of nothing."""
    half, said = "demie" if is_feminine else "demi", numbers.cardinal(whole)
    if whole == 1 and noun not in ("fois", "mois"):
        noun = noun.removesuffix("s")
    counted = f"{_feminine(said)} {noun}" if is_feminine else f"{said} {noun}".rstrip()
    return f"{counted} et {half}"


PROFILE: Final = LanguageProfile(
    code="fr",
    name="French",
    voice="pico-fr",
    keypad=Keypad(
        "étoile",
        "dièse",
        verbs="sur|composez|compose|tapez|tape|faites",
        links="la|le|de|par|avec|puis|ensuite|ou|touche",
    ),
    answer_in="Réponds toujours en français.",
    sentences=Sentences(
        apology="Désolé, quelque chose a échoué de mon côté. Pouvez-vous répéter, s'il vous "
        "plaît ?",
        idle_prompt="Êtes-vous toujours là ?",
        tool_wait="Un instant, s'il vous plaît.",
        openers=("Un instant,", "Voyons,", "Eh bien,"),
        limit_notice="Nous devons terminer cet appel dans une demi-minute.",
        announcement="Cet appel est enregistré.",
        transfer_unanswered="Je suis désolé, personne ne répond là-bas. Que puis-je faire d'autre "
        "pour vous ?",
        calibration="Voilà comment je parle d'habitude, quand personne ne me demande de parler "
        "plus fort.",
    ),
    turn_words=TurnWords(
        backchannels=phrases(
            "mm; mhm; mmhm; hm; hmm; ah; ah oui; ah bon; oh; oui; oui oui; ouais; ok; okay; "
            "d'accord; bien; très bien; bon; exactement; exact; voilà; c'est ça; c'est vrai; vrai; "
            "je vois; je comprends; compris; bien sûr; parfait; super; génial; merci; merci "
            "beaucoup; vraiment; tout à fait; entendu; effectivement"
        ),
        interruptions=word_set(
            "stop arrêtez arrête attendez attends non mais quoi comment pardon "
            "excusez excuse désolé écoutez minute allô"
        ),
        dangling=word_set(
            "et ou mais parce que qui dont si quand comme car donc lorsque euh heu mon "
            "ma mes ton ta votre vos notre nos son sa ses un une des le la les du au aux de d l à "
            "en dans avec pour par sans sur sous entre chez jusque depuis très chaque ce cette ces"
        ),
        digits=word_set("zéro un deux trois quatre cinq six sept huit neuf"),
    ),
    spoken_openers=phrase_set(
        "oui, non, bien sûr, bien, très bien, bon, d'accord, okay, exactement, alors, donc, eh "
        "bien, voyons, bonjour, bonsoir, merci, merci beaucoup, je vois, je comprends, compris, "
        "entendu, pardon, désolé, je suis désolé, malheureusement, un instant, un moment, parfait, "
        "super, volontiers, avec plaisir, certainement, effectivement"
    ),
    phrase_starts=word_set(
        "et ou mais parce que qui si quand comme car donc pour avec dans de à en "
        "par sans sur sous entre chez depuis"
    ),
    writing=Writing(
        number_words="fr",
        groups=r"[.\u00a0\u202f ]",
        decimal="virgule",
        minus="moins",
        percent="pour cent",
        range="à",
        per="par",
        out_of="sur",
        ratio="à",
        months=MONTHS,
        weekdays={
            "lun": "lundi",
            "mar": "mardi",
            "mer": "mercredi",
            "jeu": "jeudi",
            "ven": "vendredi",
            "sam": "samedi",
            "dim": "dimanche",
        },
        weekday_articles="le|du|au|ce|chaque|les",
        weekday_links="à|de|dès|vers|entre|jusqu'à",
        weekday_joints=r"[-–/,&+]|à|au|et|ou|jusqu'au",
        month_abbreviations={
            "janv": 1,
            "févr": 2,
            "avr": 4,
            "juil": 7,
            "sept": 9,
            "oct": 10,
            "nov": 11,
            "déc": 12,
        },
        date=_date,
        time=_time,
        currencies={
            "€": Currency("un euro", "euros", "un centime", "centimes"),
            "EUR": Currency("un euro", "euros", "un centime", "centimes"),
            "$": Currency("un dollar", "dollars", "un cent", "cents"),
            "USD": Currency("un dollar", "dollars", "un cent", "cents"),
            "£": Currency("une livre", "livres", "un penny", "pence", feminine=True),
            "GBP": Currency("une livre", "livres", "un penny", "pence", feminine=True),
            "CHF": Currency("un franc", "francs", "un centime", "centimes"),
        },
        sum_joint="",
        scales=r"millions?|milliards?",
        half=("un demi", "une demi"),
        and_half=_and_half,
        times=Unit("une fois", "fois", feminine=True),
        fractions={
            3: ("un tiers", "tiers"),
            4: ("un quart", "quarts"),
            5: ("un cinquième", "cinquièmes"),
            6: ("un sixième", "sixièmes"),
            8: ("un huitième", "huitièmes"),
            10: ("un dixième", "dixièmes"),
        },
        units={
            "km/h": Unit("un kilomètre par heure", "kilomètres par heure"),
            "kWh": Unit("un kilowattheure", "kilowattheures"),
            "km": Unit("un kilomètre", "kilomètres"),
            "cm": Unit("un centimètre", "centimètres"),
            "mm": Unit("un millimètre", "millimètres"),
            "m": Unit("un mètre", "mètres"),
            "kg": Unit("un kilo", "kilos"),
            "g": Unit("un gramme", "grammes"),
            "mg": Unit("un milligramme", "milligrammes"),
            "l": Unit("un litre", "litres"),
            "ml": Unit("un millilitre", "millilitres"),
            "j": Unit("un jour", "jours"),
            "h": Unit("une heure", "heures", feminine=True),
            "min": Unit("une minute", "minutes", feminine=True),
            "s": Unit("une seconde", "secondes", feminine=True),
            "°C": Unit("un degré", "degrés"),
            "℃": Unit("un degré", "degrés"),
            "k€": Unit("mille euros", "mille euros"),
            "kW": Unit("un kilowatt", "kilowatts"),
            "W": Unit("un watt", "watts"),
            "V": Unit("un volt", "volts"),
            "°": Unit("un degré", "degrés"),
            "Go": Unit("un gigaoctet", "gigaoctets"),
            "Mo": Unit("un mégaoctet", "mégaoctets"),
            "M€": Unit("un million d'euros", "millions d'euros"),
            "m²": Unit("un mètre carré", "mètres carrés"),
        },
        abbreviations={
            "p. ex.": "par exemple",
            "p.ex.": "par exemple",
            "etc.": "et cetera",
            "c.-à-d.": "c'est-à-dire",
            "M.": "monsieur",
            "Mme": "madame",
            "Mlle": "mademoiselle",
            "MM.": "messieurs",
            "Dr": "docteur",
            "Dr.": "docteur",
            "Pr": "professeur",
            "av.": "avenue",
            "Av.": "avenue",
            "bd": "boulevard",
            "Bd": "boulevard",
            "n°": "numéro",
            "N°": "numéro",
            "tél.": "téléphone",
            "Tél.": "téléphone",
            "bât.": "bâtiment",
            "pers.": "personnes",
            "réf.": "référence",
            "Réf.": "référence",
            "env.": "environ",
            "max.": "maximum",
            "min.": "minimum",
            "St": "saint",
            "Ste": "sainte",
        },
        titles={},
        symbols={
            "&": "et",
            "+": "plus",
            "=": "égale",
            "@": "arobase",
            "%": "pour cent",
            "€": "euros",
            "$": "dollars",
            "£": "livres",
            "°": "degrés",
            "§": "paragraphe",
            "×": "fois",
            "÷": "divisé par",
            "½": "un demi",
            "¼": "un quart",
            "¾": "trois quarts",
            "#": "numéro",
            "→": "vers",
        },
        words={"OK": "okay", "Ok": "okay", "ok": "okay"},
        acronyms_said=word_set("PIN SIM OTAN ONU NASA SIDA COVID UNESCO"),
        code_labels=(
            r"numéro|commande|code|PIN|référence|compte|téléphone|poste|dossier|facture|"
            r"code postal|code de \w+|IBAN|terminant par|réservation|n°|tél\.|réf\."
        ),
        address={
            ".": "point",
            "-": "tiret",
            "_": "tiret bas",
            "/": "barre oblique",
            "@": "arobase",
            "+": "plus",
        },
        rules=(
            SpokenRule(r"(?P<n>\d{1,3})\s?(?P<u>h|j|heures|jours)?\s?/\s?(?P=n)(?![\w/])", _all_of),
            SpokenRule(r"(?P<h>\d{1,2})\s?h\s?(?P<m>[0-5]?\d)\s?m(?:in)?(?![\w²³/])", _duration),
            SpokenRule(r"(?P<h>[01]?\d|2[0-4])\s?h\s?(?P<m>[0-5]\d)?(?![\w/])", _clock),
            SpokenRule(r"(?P<n>\d{1,3})(?P<e>ère|ème|er|re|e)(?!\w)", _ordinal),
            SpokenRule(
                rf"(?P<head>(?:{_KINGS})|(?P<queen>{_QUEENS}))\s"
                rf"(?:(?P<first>I(?:er|re|ère)(?!\w))|(?P<r>{roman.NUMERAL})(?![-'’]\w))",
                _ruler,
            ),
            SpokenRule(
                r"(?P<head>[Cc]hapitre|[Tt]ome|[Vv]olume|[Aa]cte|[Ss]cène|[Aa]nnexe|[Ll]ivre)\s"
                rf"(?P<r>{roman.NUMERAL})(?![-'’]\w)",
                _numbered,
            ),
            SpokenRule(
                r"(?P<r>[IVX]{1,7})(?:er|e|ème|ième)(?=\s(?:siècle|arrondissement|République|"
                r"millénaire|dynastie)s?\b)",
                _roman_ordinal,
            ),
        ),
        feminine=_feminine,
        masculine_behind=rf"\s(?!(?:{_NO_NOUN})\b)[a-zàâçéèêëîïôöùûü]{{2}}",
        feminine_behind=rf"\s(?:\w{{1,20}}es?\s)?(?:{_FEMININE_NOUN})",
        number_labels=_LABELS,
        after_millions=_after_millions,
    ),
)
