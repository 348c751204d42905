"""Spanish: sentences, words of turn-taking, and how numbers and dates are read."""

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
    *("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre"),
    *("octubre", "noviembre", "diciembre"),
)


def _date(numbers: Numbers, day: int, month: int, year: int | None, before: str) -> str:
    first = "primero" if day == 1 else numbers.cardinal(day)
    said = f"{first} de {MONTHS[month - 1]}"
    return said if year is None else f"{said} de {numbers.year(year)}"


def _time(numbers: Numbers, hour: int, minute: int) -> str:
    said = _feminine(numbers.cardinal(hour))
    return f"{said} y {numbers.cardinal(minute)}" if minute else f"{said} en punto"


def _before_noun(spoken: str) -> str:
    """ "veintiuno" -> "veintiún", "treinta y uno" -> "treinta y un"."""
    if spoken.endswith("veintiuno"):
        return spoken[:-9] + "veintiún"
    return spoken[:-1] if spoken.endswith("uno") else spoken


def _corrected_cardinal(spoken: str) -> str:
    """ "veintiún mil", "treinta y un millones": num2words has "uno" in front of both."""
    return re.sub(
        r"(?P<tens>veinti)?uno(?= mil(?:lones)?\b)",
        lambda match: "veintiún" if match["tens"] else "un",
        spoken,
    )


def _feminine(spoken: str) -> str:
    """ "doscientas una"; millions stay masculine."""
    spoken = re.sub("uno$", "una", spoken)
    head, millions, tail = spoken.rpartition("millones")
    return head + millions + re.sub(r"(cient|quinient)os\b", r"\1as", tail)


def _after_millions(noun: str) -> str:
    return noun if noun == "de" else f"de {noun}"


_FEMININE_NOUN: Final = (
    r"(?:hora|semana|persona|cita|noche|mesa|reserva|llamada|pregunta|tarjeta|factura|entrada|plaza|"
    r"cuenta|copia|página|tonelada|milla|botella|caja|pieza|noticia|tarea|compra|oferta|entrega|foto|"
    r"palabra|cuota|planta|silla|cama|letra|respuesta|empresa|tienda|calle|hectárea|libra|taza|cuchara|"
    r"cucharada|puerta|ventana|película|canción|moneda|línea|vía|vuelta|etapa|casa|consulta|visita)s?\b"
    r"|(?:vez|veces)\b|\w+[cs]i(?:ón|ones)\b|\w+[dt]ad(?:es)?\b"
)
_NO_NOUN: Final = (
    r"de|del|y|e|o|u|a|al|en|es|está|están|era|fue|ha|han|hay|tiene|por|para|con|sin|que|se|no|si|ni|más|"
    r"menos|hasta|desde|entre|sobre|como|pero|porque|cuando|donde|el|la|los|las|su|sus|mi|le|les|lo|me|"
    r"nos|te|ya|también|será|son|sale|llega|abre|cierra|cuesta|después|antes|ahora|aquí|hoy|mañana|"
    r"primero|o sea|según|durante|tras|ante|bajo|contra"
)
_IN_A: Final = (
    rf"(?!(?:{_NO_NOUN})\b|(?:día|mapa|planeta|guía|gramo|\w*(?:ema|oma|ama|ista))s?\b)\w+as?\b"
)
"""Nouns in -a are feminine but for a few."""
_LABELS: Final = (
    r"opción|número|núm\.|n\.?º|n°|habitación|vía|puerta|página|capítulo|línea|paso|versión|piso|planta|mesa|sala|"
    r"autobús|parte|tipo|fase|nivel|artículo|punto|andén|el|la|del|al"
)
"""Words with a number of their own."""


def _hour(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "a la 1", "hasta las 21": hours are feminine."""
    before = match.string[max(0, match.start() - 16) : match.start()]
    is_hour = re.search(rf"\b(?:{_BEFORE_HOUR})\slas?\s$", before, re.IGNORECASE)
    return _feminine(numbers.cardinal(int(match["n"]))) if is_hour else None


_BEFORE_HOUR: Final = r"a|de|desde|hasta|sobre|hacia|para|entre|tras|y|o|es|son|era|eran"


def _part_of_day(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "9 p. m.": it is night from nine on, and noon and midnight have names of their own."""
    begin, end = match.span()
    found = re.search(r"(?<!\d)(\d{1,2})(?:[:.]\d\d)?\s?$", match.string[max(0, begin - 8) : begin])
    if found is None:
        return None
    hour = int(found[1])
    if match["am"]:
        said = "de la noche" if hour == 12 else "de la mañana"
    elif hour == 12:
        said = "del mediodía"
    else:
        said = "de la noche" if hour >= 9 else "de la tarde"
    is_over = match[0].endswith(".") and not match.string[end : end + 8].strip()
    return said + "." if is_over else said


def _thousand(match: re.Match[str], numbers: Numbers) -> str:
    """ "1 mil" is "mil"; of more thousands the number is said."""
    return "mil"


def _ordinal(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "3.º", "2ª", "2da": and the short forms in front of a noun, "1.er"."""
    spoken, ending = numbers.ordinal(int(match["n"])), match["e"]
    if ending[-1] in "ªa":
        return re.sub(r"o\b", "a", spoken)
    is_before_noun = ending == "er" or re.match(
        r"\s(?!de\b)[a-záéíóúñ]", match.string[match.end() : match.end() + 8]
    )
    is_short = spoken.endswith(("primero", "tercero"))
    return spoken[:-1] if is_short and is_before_noun else spoken


_KINGS: Final = (
    r"Luis|Carlos|Felipe|Alfonso|Fernando|Enrique|Jaime|Pedro|Sancho|Ramiro|Juan Carlos|Juan Pablo|"
    r"Juan|Pablo|Pío|Benedicto|León|Gregorio|Inocencio|Urbano|Clemente|Julio|Napoleón|Guillermo|"
    r"Federico|Jorge|Eduardo|Nicolás|Alejandro|Ramsés|Jacobo|Ricardo|Francisco|José|Amadeo"
)
_QUEENS: Final = r"Isabel|María|Catalina|Margarita|Cleopatra"


def _ruler(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "Felipe VI", an ordinal, and "Luis XVI", a number, as they are from eleven on."""
    if roman.is_initial(match):
        return None
    value = roman.value_of(match["r"])
    if value > 10:
        return f"{match['head']} {numbers.cardinal(value)}"
    ordinal = numbers.ordinal(value)
    return f"{match['head']} {ordinal[:-1] + 'a' if match['queen'] else ordinal}"


def _numbered(match: re.Match[str], numbers: Numbers) -> str | None:
    """ "capítulo IV", "siglo XXI", "siglo V"; an X alone may be any, but of centuries."""
    value, is_century = roman.value_of(match["r"]), match["head"].lower() == "siglo"
    if match["r"] == "X" and not is_century:
        return None
    is_ordinal = is_century and value <= 10
    said = numbers.ordinal(value) if is_ordinal else numbers.cardinal(value)
    return f"{match['head']} {said}"


def _and_half(numbers: Numbers, whole: int, noun: str, is_feminine: bool) -> str:
    """ "una hora y media", "dos kilos y medio"; "uno y medio" of nothing."""
    half, said = "media" if is_feminine else "medio", numbers.cardinal(whole)
    if not noun:
        return f"{said} y {half}"
    if whole == 1 and noun != "mes":
        noun = re.sub(r"(?:(?<=mes)es|(?<=[dlnr])es|s)$", "", noun)
    return f"{_feminine(said) if is_feminine else _before_noun(said)} {noun} y {half}"


PROFILE: Final = LanguageProfile(
    code="es",
    name="Spanish",
    voice="pico-es",
    keypad=Keypad(
        "asterisco",
        "almohadilla",
        verbs="pulse|pulsa|marque|marca|presione|presiona|oprima|teclee|teclea",
        links="la|de|por|con|luego|después|o|tecla|signo",
    ),
    answer_in="Responde siempre en español.",
    sentences=Sentences(
        apology="Lo siento, algo ha fallado por mi parte. ¿Puede repetirlo, por favor?",
        idle_prompt="¿Sigue usted ahí?",
        tool_wait="Un momento, por favor.",
        openers=("Un momento,", "Vamos a ver,", "Pues bien,"),
        limit_notice="Tenemos que terminar esta llamada dentro de medio minuto.",
        announcement="Esta llamada se está grabando.",
        transfer_unanswered="Lo siento, allí no contesta nadie. ¿En qué más puedo ayudarle?",
        calibration="Así de alto suelo hablar cuando nadie me pide que hable más alto.",
    ),
    turn_words=TurnWords(
        backchannels=phrases(
            "mm; mhm; mmhm; hm; hmm; ajá; aha; ah; ah sí; oh; sí; si; sí sí; ya; ya veo; vale; ok; "
            "okay; claro; claro que sí; bien; muy bien; bueno; de acuerdo; exacto; eso es; cierto; "
            "entiendo; ya entiendo; perfecto; genial; estupendo; gracias; muchas gracias; por "
            "supuesto; en serio; qué bien"
        ),
        interruptions=word_set(
            "para pare espera espere no pero qué cómo perdón perdone disculpe oiga oye momento hola"
        ),
        dangling=word_set(
            "y e o u a pero porque que si cuando como aunque sino eh em este mi mis tu su "
            "sus nuestro nuestra un una unos unas el la los las del al de en con por para sin "
            "sobre entre hasta desde muy cada"
        ),
        digits=word_set("cero uno una dos tres cuatro cinco seis siete ocho nueve"),
    ),
    spoken_openers=phrase_set(
        "sí, no, claro, claro que sí, bien, muy bien, bueno, vale, okay, de acuerdo, por supuesto, "
        "desde luego, exacto, pues, pues bien, entonces, a ver, vamos a ver, hola, buenos días, "
        "buenas tardes, buenas noches, gracias, muchas gracias, entiendo, entendido, perdón, lo "
        "siento, lamentablemente, un momento, perfecto, estupendo, genial"
    ),
    phrase_starts=word_set(
        "y e o pero porque que si cuando como aunque sino para con de en por sin "
        "sobre entre hasta desde"
    ),
    writing=Writing(
        number_words="es",
        groups=r"[.\u00a0\u202f]",
        decimal="coma",
        minus="menos",
        percent="por ciento",
        range="a",
        per="por",
        out_of="de",
        ratio="a",
        months=MONTHS,
        weekdays={
            "lun": "lunes",
            "mar": "martes",
            "mié": "miércoles",
            "jue": "jueves",
            "vie": "viernes",
            "sáb": "sábado",
            "dom": "domingo",
        },
        weekday_articles="el|los|del|al|este|próximo|cada",
        weekday_links="a las|a la|de|desde las|hasta las|sobre las",
        weekday_joints=r"[-–/,&+]|a|al|y|o|hasta el",
        month_abbreviations={
            "ene": 1,
            "feb": 2,
            "abr": 4,
            "jun": 6,
            "jul": 7,
            "ago": 8,
            "sept": 9,
            "oct": 10,
            "nov": 11,
            "dic": 12,
        },
        date=_date,
        time=_time,
        currencies={
            "€": Currency("un euro", "euros", "un céntimo", "céntimos"),
            "EUR": Currency("un euro", "euros", "un céntimo", "céntimos"),
            "$": Currency("un dólar", "dólares", "un centavo", "centavos"),
            "USD": Currency("un dólar", "dólares", "un centavo", "centavos"),
            "£": Currency("una libra", "libras", "un penique", "peniques", feminine=True),
            "GBP": Currency("una libra", "libras", "un penique", "peniques", feminine=True),
        },
        sum_joint="con",
        scales=r"mil millones|millón|millones",
        half=("medio", "media"),
        and_half=_and_half,
        times=Unit("una vez", "veces", feminine=True),
        fractions={
            3: ("un tercio", "tercios"),
            4: ("un cuarto", "cuartos"),
            5: ("un quinto", "quintos"),
            6: ("un sexto", "sextos"),
            8: ("un octavo", "octavos"),
            10: ("un décimo", "décimos"),
        },
        units={
            "km/h": Unit("un kilómetro por hora", "kilómetros por hora"),
            "kWh": Unit("un kilovatio hora", "kilovatios hora"),
            "km": Unit("un kilómetro", "kilómetros"),
            "cm": Unit("un centímetro", "centímetros"),
            "mm": Unit("un milímetro", "milímetros"),
            "m": Unit("un metro", "metros"),
            "kg": Unit("un kilo", "kilos"),
            "g": Unit("un gramo", "gramos"),
            "mg": Unit("un miligramo", "miligramos"),
            "l": Unit("un litro", "litros"),
            "ml": Unit("un mililitro", "mililitros"),
            "h": Unit("una hora", "horas", feminine=True),
            "min": Unit("un minuto", "minutos"),
            "s": Unit("un segundo", "segundos"),
            "°C": Unit("un grado", "grados"),
            "℃": Unit("un grado", "grados"),
            "k€": Unit("mil euros", "mil euros"),
            "kW": Unit("un kilovatio", "kilovatios"),
            "W": Unit("un vatio", "vatios"),
            "V": Unit("un voltio", "voltios"),
            "°": Unit("un grado", "grados"),
            "ºC": Unit("un grado", "grados"),
            "GB": Unit("un gigabyte", "gigabytes"),
            "MB": Unit("un megabyte", "megabytes"),
            "M€": Unit("un millón de euros", "millones de euros"),
            "m²": Unit("un metro cuadrado", "metros cuadrados"),
        },
        abbreviations={
            "p. ej.": "por ejemplo",
            "p.ej.": "por ejemplo",
            "etc.": "etcétera",
            "Sr.": "señor",
            "Sra.": "señora",
            "Sres.": "señores",
            "Dña.": "doña",
            "Srta.": "señorita",
            "Dr.": "doctor",
            "Dra.": "doctora",
            "Ud.": "usted",
            "Uds.": "ustedes",
            "Av.": "avenida",
            "Avda.": "avenida",
            "Pza.": "plaza",
            "Ctra.": "carretera",
            "C/": "calle",
            "c/": "calle",
            "c/u": "cada uno",
            "s/n": "sin número",
            "n.º": "número",
            "N.º": "número",
            "nº": "número",
            "Nº": "número",
            "n°": "número",
            "N°": "número",
            "núm.": "número",
            "Núm.": "número",
            "tel.": "teléfono",
            "Tel.": "teléfono",
            "tfno.": "teléfono",
            "Tfno.": "teléfono",
            "ref.": "referencia",
            "Ref.": "referencia",
            "izq.": "izquierda",
            "dcha.": "derecha",
            "am": "de la mañana",
            "AM": "de la mañana",
            "a.m.": "de la mañana",
            "a. m.": "de la mañana",
            "pm": "de la tarde",
            "PM": "de la tarde",
            "p.m.": "de la tarde",
            "p. m.": "de la tarde",
            "aprox.": "aproximadamente",
            "pág.": "página",
            "máx.": "máximo",
            "mín.": "mínimo",
            "Sto.": "santo",
            "Sta.": "santa",
            "EE. UU.": "Estados Unidos",
            "EE.UU.": "Estados Unidos",
        },
        titles={},
        symbols={
            "&": "y",
            "+": "más",
            "=": "igual a",
            "@": "arroba",
            "%": "por ciento",
            "€": "euros",
            "$": "dólares",
            "£": "libras",
            "°": "grados",
            "§": "sección",
            "×": "por",
            "÷": "dividido entre",
            "½": "medio",
            "¼": "un cuarto",
            "¾": "tres cuartos",
            "#": "número",
            "→": "a",
        },
        words={"OK": "okay", "Ok": "okay", "ok": "okay"},
        acronyms_said=word_set("PIN SIM OTAN ONU NASA IVA SIDA COVID RENFE AVE"),
        code_labels=(
            r"número|pedido|código|PIN|referencia|cuenta|teléfono|extensión|localizador|factura|"
            r"código postal|código de \w+|IBAN|terminada? en|n\.?º|n°|núm\.|ref\.|tel\.|tfno\."
        ),
        address={
            ".": "punto",
            "-": "guion",
            "_": "guion bajo",
            "/": "barra",
            "@": "arroba",
            "+": "más",
        },
        rules=(
            SpokenRule(r"(?P<n>\d{1,3})\.?(?P<e>º|ª|er|[rdtvn]?[oa])(?![a-záéíóúñ]|C\b)", _ordinal),
            SpokenRule(r"(?:(?P<am>[aA])|[pP])(?:\.\s?[mM]\.|[mM](?!\w))", _part_of_day),
            SpokenRule(
                r"(?P<n>21|1)(?![\wºª°]|[.,:/-]\d|\.[ºª]|\s?[%€$£]|\s(?:h|mil)\b)",
                _hour,
            ),
            SpokenRule(r"1\smil(?!\w)", _thousand),
            SpokenRule(
                rf"(?P<head>(?:{_KINGS})|(?P<queen>{_QUEENS}))\s(?P<r>{roman.NUMERAL})(?![-'’]\w)",
                _ruler,
            ),
            SpokenRule(
                r"(?P<head>[Ss]iglo|[Cc]apítulo|[Tt]omo|[Vv]olumen|[Aa]cto|[Ee]scena|[Aa]rtículo|[Aa]nexo)"
                rf"\s(?P<r>{roman.NUMERAL})(?![-'’]\w)",
                _numbered,
            ),
        ),
        corrected_cardinal=_corrected_cardinal,
        feminine=_feminine,
        before_noun=_before_noun,
        feminine_behind=rf"\s(?!(?:{_NO_NOUN})\b)(?:\w{{1,20}}as?\s)?(?:{_FEMININE_NOUN}|{_IN_A})",
        masculine_behind=rf"\s(?!(?:{_NO_NOUN})\b)[a-záéíóúñü]{{2}}",
        number_labels=_LABELS,
        after_millions=_after_millions,
    ),
)
