"""Written text to spoken words: a table of cases, and what holds for any text."""

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tts.text.normalize import join_words, normalize, spoken_words, unnormalized_words

_MONEY = [
    ("It costs $29.99.", "It costs twenty-nine dollars and ninety-nine cents."),
    ("$1", "one dollar"),
    ("$0.99", "ninety-nine cents"),
    ("$0.01", "one cent"),
    ("-$5", "minus five dollars"),
    ("$1.5M", "one point five million dollars"),
    ("$3 billion", "three billion dollars"),
    ("$20k", "twenty thousand dollars"),
    ("$1234567", "one million two hundred thirty-four thousand five hundred sixty-seven dollars"),
    ("$5-10", "five to ten dollars"),
    ("$5–$10", "five to ten dollars"),
    ("$5-10 million", "five to ten million dollars"),
    ("10€-20€", "ten euros to twenty euros"),
    ("$5k-10k", "five thousand dollars to ten thousand"),
    ("$5k – $10k", "five thousand dollars to ten thousand dollars"),
    ("$20/mo", "twenty dollars per month"),
    ("$1,234.50", "one thousand two hundred thirty-four dollars and fifty cents"),
    ("£5.50", "five pounds and fifty pence"),
    ("€20", "twenty euros"),
    ("20€", "twenty euros"),
    ("¥1000", "one thousand yen"),
    ("50¢", "fifty cents"),
    ("5 USD", "five dollars"),
    ("USD 5", "five dollars"),
    ("US$5", "five dollars"),
    ("**$5**", "five dollars"),
    (
        "US$1.5 million, USD 1.5 million, EUR 1.5bn",
        "one point five million dollars, one point five million dollars, "
        "one point five billion euros",
    ),
    ("5 million USD, 5M USD", "five million dollars, five million dollars"),
    (
        "US$5-10, US$5-US$10, USD 5-10, 5-10 €",
        "five to ten dollars, five to ten dollars, five to ten dollars, five to ten euros",
    ),
    ("$100K/year", "one hundred thousand dollars per year"),
    ("$5/person/night", "five dollars per person per night"),
    (
        "₹1,00,000, ₹12,34,567",
        "one hundred thousand rupees, one million two hundred thirty-four "
        "thousand five hundred sixty-seven rupees",
    ),
    ("$5 b/c", "five dollars because"),
]
_NUMBERS = [
    ("1,000 people", "one thousand people"),
    ("3.14", "three point one four"),
    ("-5 degrees", "minus five degrees"),
    (".5", "point five"),
    ("50%", "fifty percent"),
    ("3.5 %", "three point five percent"),
    ("10-20%", "ten to twenty percent"),
    ("1st 2nd 3rd 21st 100th", "first second third twenty-first one hundredth"),
    ("pages 10-20", "pages ten to twenty"),
    ("5–7 days", "five to seven days"),
    ("score 3-2", "score three to two"),
    ("(-5%) and ($5)", "minus five percent, and, five dollars,"),
    ("30 x 20 x 10 cm", "thirty by twenty by ten centimeters"),
    ("3-4x", "three to four times"),
    ("5%-10% or 5% – 10%", "five percent to ten percent or five percent to ten percent"),
    ("5kg-10kg", "five kilograms to ten kilograms"),
    ("5 kg - 10 kg", "five kilograms to ten kilograms"),
    ("a 5% fee - 3 days later", "a five percent fee, three days later"),
    ("5% - 3 days", "five percent, three days"),
    ("12/20-12/27", "December twentieth to December twenty-seventh"),
    ("-5°C to -10°C", "minus five degrees Celsius to minus ten degrees Celsius"),
    ("10 000 people", "ten thousand people"),
    (
        "1 000 000 and 1 234 567",
        "one million and one million two hundred thirty-four thousand five hundred sixty-seven",
    ),
    ("$10 000", "ten thousand dollars"),
    ("buy 2 500 ml bottles", "buy two five hundred milliliters bottles"),
    ("16:9", "sixteen to nine"),
    ("1/2 cup", "one half cup"),
    ("2 1/2 cups", "two and a half cups"),
    ("2½ cups", "two and a half cups"),
    ("½", "one half"),
    ("3/16", "three sixteenths"),
    ("8/10", "eight out of ten"),
    ("24/7", "twenty-four seven"),
    ("50/50", "fifty-fifty"),
    ("4x4", "four by four"),
    ("3x", "three times"),
    ("#5", "number five"),
    ("~5 people", "about five people"),
    (">10", "over ten"),
    ("10k", "ten thousand"),
    ("1,2,3", "one, two, three"),
    ("3-day trip", "three day trip"),
    ("2 + 2 = 4", "two plus two equals four"),
    ("10 - 3 - 2 = 5", "ten minus three minus two equals five"),
    ("$10 - $3 = $7", "ten dollars minus three dollars equals seven dollars"),
    ("10 kg - 3 kg = 7 kg", "ten kilograms minus three kilograms equals seven kilograms"),
    ("- 3 = three\n- 4 = four", "three equals three. four equals four"),
    ("4.5/5 stars, 4/5 stars", "four point five out of five stars, four out of five stars"),
    (
        "rated 4/5, 4.8/10, 4/5 cup",
        "rated four out of five, four point eight out of ten, four fifths cup",
    ),
    ("3 × 4", "three times four"),
    ("3 * 4 and 3*4", "three times four and three times four"),
    ("10 ÷ 2", "ten divided by two"),
    ("x²", "x squared"),
    ("10^6", "ten to the power of six"),
    ("2^-3", "two to the power of minus three"),
    ("x < y", "x less than y"),
    ("π", "pi"),
    ("١٢٣", "one hundred twenty-three"),
    ("250K followers, 10M users", "two hundred fifty thousand followers, ten million users"),
    ("a 4K TV, seat 20B", "a four K T.V, seat twenty B"),
    ("100 / 4 = 25", "one hundred divided by four equals twenty-five"),
    (
        "10/2=5, 3/4 = 0.75",
        "ten divided by two equals five, three quarters equals zero point seven five",
    ),
    ("ages: >=18, <=5", "ages: at least eighteen, at most five"),
    ("10⁶, 10⁻³, a study¹", "ten to the power of six, ten to the power of minus three, a study"),
]
_UNITS = [
    ("5km", "five kilometers"),
    ("1 km", "one kilometer"),
    ("20°C", "twenty degrees Celsius"),
    ("98.6 °F", "ninety-eight point six degrees Fahrenheit"),
    ("3 hrs", "three hours"),
    ("60 mph", "sixty miles per hour"),
    ("60 km/h", "sixty kilometers per hour"),
    ("16 GB", "sixteen gigabytes"),
    ("5 ft", "five feet"),
    ("5'10\"", "five foot ten"),
    ("100 sq ft", "one hundred square feet"),
    ("5-10 kg", "five to ten kilograms"),
    ("500ms", "five hundred milliseconds"),
    ("1h 30m, 1h30min", "one hour thirty minutes, one hour thirty minutes"),
    (
        "2 hours 1m 5s, 2h 30mm",
        "two hours one minute five seconds, two hours thirty millimeters",
    ),
    ("1 tsp. of salt", "one teaspoon of salt"),
    ("for 5 min.", "for five minutes."),
    ("3/4 tsp, 1½ lbs", "three quarters teaspoon, one and a half pounds"),
    ("16GB of RAM, 500MB", "sixteen gigabytes of RAM, five hundred megabytes"),
    ("a 12V battery, 100W", "a twelve volts battery, one hundred watts"),
    ("21℃ or 70℉", "twenty-one degrees Celsius or seventy degrees Fahrenheit"),
    ("9.8 m/s²", "nine point eight meters per second squared"),
    ("5m 30s, 1h 5m 30s", "five minutes thirty seconds, one hour five minutes thirty seconds"),
]
_TIME = [
    ("10:30 am", "ten thirty A.M"),
    ("7:05 PM", "seven oh five P.M"),
    ("18:45", "eighteen forty-five"),
    ("9:00", "nine o'clock"),
    ("10:00 AM", "ten A.M"),
    ("at 7pm", "at seven P.M"),
    ("9am-5pm", "nine A.M to five P.M"),
    ("9am-5:30pm or 9-5:30pm", "nine A.M to five thirty P.M or nine to five thirty P.M"),
    ("5:30 p.m. - 9 p.m.", "five thirty P.M to nine P.M."),
    ("3:00 UTC-5, GMT+1", "three o'clock U.T.C minus five, G.M.T plus one"),
    ("10:30-11:00", "ten thirty to eleven o'clock"),
    ("10:30:15", "ten thirty and fifteen seconds"),
    ("At 5 p.m. We left.", "At five P.M. We left."),
    ("At 5 p.m. on Monday.", "At five P.M on Monday."),
    ("At 5 p.m. Monday.", "At five P.M Monday."),
    ("3/14/2024", "March fourteenth, twenty twenty-four"),
    ("2024-03-14", "March fourteenth, twenty twenty-four"),
    ("3-14-2024", "March fourteenth, twenty twenty-four"),
    ("March 5, 2021", "March fifth, twenty twenty-one"),
    ("Mar. 5", "March fifth"),
    ("March 5-7", "March fifth to seventh"),
    ("5 March 2021", "the fifth of March, twenty twenty-one"),
    ("the 3rd of May", "the third of May"),
    ("12/25", "December twenty-fifth"),
    ("in 1999", "in nineteen ninety-nine"),
    ("1990s", "nineteen nineties"),
    ("the '90s", "the nineties"),
    ("the 80s", "the eighties"),
    ("2019-2021", "twenty nineteen to twenty twenty-one"),
    ("1995–98", "nineteen ninety-five to nineteen ninety-eight"),
    ("Mon-Fri", "Monday to Friday"),
    ("Mon. - Fri. 9am, Monday–Friday.", "Monday to Friday nine A.M, Monday to Friday."),
    ("Jan-Mar and January–March", "January to March and January to March"),
    ("1:30-2", "one thirty to two"),
    ("5/4 time", "five quarters time"),
    ("Dec 24 - Jan 2", "December twenty-fourth to January second"),
    ("on 11/5 or on 3/4", "on November fifth or on March fourth"),
    ("Tue, March 5", "Tuesday, March fifth"),
    ("2001-09-11T10:00", "September eleventh, two thousand one at ten o'clock"),
    ("you may 5 times", "you may five times"),
    ("2024/01/02", "January second, twenty twenty-four"),
    ("valid through 12/2027", "valid through December twenty twenty-seven"),
]
_CODES = [
    ("555-1234", "five five five, one two three four"),
    ("555-123-4567", "five five five, one two three, four five six seven"),
    ("(800) 555-0199", "eight hundred, five five five, zero one nine nine"),
    ("+1 415 555 2671", "plus one, four one five, five five five, two six seven one"),
    ("+44 (0)20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
    ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
    ("1-800-FLOWERS", "one, eight hundred, Flowers"),
    ("call 911", "call nine one one"),
    ("order number is 48213", "order number is four eight two one three"),
    ("code is 123 456.", "code is one two three, four five six."),
    ("ID 0012-345", "I.D zero zero one two, three four five"),
    ("an order of 100 000 parts", "an order of one hundred thousand parts"),
    ("CA 94107", "C.A nine four one zero seven"),
    ("room 302", "room three oh two"),
    ("Room 302", "Room three oh two"),
    (
        "order #114-3941689-8772232",
        "order number one one four, three nine four one six eight nine, "
        "eight seven seven two two three two",
    ),
    ("Your OTP is 482913.", "Your O.T.P is four eight two nine one three."),
    ("(020) 7946 0958", "zero two zero, seven nine four six, zero nine five eight"),
    ("+1-800-FLOWERS", "one, eight hundred, Flowers"),
    ("flight UA 2045", "flight U.A twenty forty-five"),
    ("4111 1111 1111 1111", "four one one one" + ", one one one one" * 3),
    ("412 345 678", "four hundred twelve three hundred forty-five six hundred seventy-eight"),
    (
        "ISBN 978-3-16-148410-0",
        "I.S.B.N nine seven eight, three, one six, one four eight four one zero, zero",
    ),
    ("Tag us with #Win2024", "Tag us with hashtag Win two thousand twenty-four"),
    ("Use code #SUMMER at checkout.", "Use code summer at checkout."),
    (
        "1999-2499 dollars",
        "one thousand nine hundred ninety-nine to two thousand four hundred ninety-nine dollars",
    ),
    ("Ages 3 - 12 = $10", "Ages three to twelve equals ten dollars"),
    ("Score 90 - 100 = A", "Score ninety to one hundred equals A"),
    ("$10 - $3 = $7", "ten dollars minus three dollars equals seven dollars"),
    ("On 5/5 we open.", "On May fifth we open."),
    ("Monday, May 12 - 9:30 AM", "Monday, May twelfth, nine thirty A.M"),
    ("Nov 3 – 10am", "November third, ten A.M"),
    ("Pier 39 - 10am", "Pier thirty-nine, ten A.M"),
    ("10:30am - 11am", "ten thirty A.M to eleven A.M"),
    ("*20 minutes, at most", "twenty minutes, at most"),
    ("*18 and over only", "eighteen and over only"),
    ("*9, or *8", "star nine, or star eight"),
    ("Your order #A1B2C3 shipped.", "Your order number A one B two C three shipped."),
    ("Ticket #TK-4821", "Ticket number T.K four eight two one"),
    ("Confirmation: #XKCDQA, #ABC", "Confirmation: number X.K.C.D.Q.A, hashtag ABC"),
    ("order #PROJECT7, #WorldCup26", "order number Project seven, hashtag World Cup twenty-six"),
    (
        "2024-123, 4711-0815",
        "two zero two four, one two three, four seven one one, zero eight one five",
    ),
    ("192.168.1.1", "one nine two dot one six eight dot one dot one"),
    ("v2.0.1", "version two point zero point one"),
    ("COVID-19", "Covid nineteen"),
    ("B12", "B twelve"),
    ("5G", "five G"),
    ("mid-1990s", "mid nineteen nineties"),
    ("https://www.example.com/path?x=1.", "example dot com slash path."),
    ("see example.com, please", "see example dot com, please"),
    ("bob.smith@gmail.com", "bob dot smith at gmail dot com"),
    ("report.pdf", "report dot P.D.F"),
    ("song.mp3", "song dot M.P three"),
]
_KEYS = [
    ("Press *9 or press 1#.", "Press star nine or press one pound."),
    ("Dial *67. Or *82, then 12#", "Dial star six seven. Or star eight two, then one two pound"),
    ("*#06# or *21*555#", "star pound zero six pound or star two one star five five five pound"),
    ("Press #, * or the # key.", "Press pound, star or the pound key."),
    ('Press * or "#", then #9.', "Press star or pound, then number nine."),
    ("Press #9, dial 5*", "Press pound nine, dial five star"),
    (r"**\*9**, **#**, press **#**", "star nine, pound, press pound"),
    ("press **1#** or **9**", "press one pound or nine"),
    ("*9* and *5 apples* and *2 of 5*", "nine and five apples and two of five"),
    ("hit #1, by # of views", "hit number one, by of views"),
    ("$5*, 3* and # 5", "five dollars, three and five"),
    ("*dial 5*, 2*3, C#", "dial five, two times three, C sharp"),
]
_WORDS = [
    ("Dr. Smith vs. Mr. Jones", "Doctor Smith versus Mister Jones"),
    ("St. Louis, 12 Main St.", "Saint Louis, twelve Main Street."),
    ("12 Main St. Turn left.", "twelve Main Street. Turn left."),
    ("e.g. this, i.e. that, etc.", "for example this, that is that, et cetera."),
    ("FBI, NASA and APIs", "F.B.I, NASA and A.P.I's"),
    ("the FBI's HQ", "the F.B.I's H.Q"),
    ("the U.S. Army", "the U.S Army"),
    ("J. K. Rowling", "J K Rowling"),
    ("WHO said OK", "who said okay"),
    ("This is IMPORTANT!", "This is important!"),
    ("DO NOT DO THIS", "do not do this"),
    ("Chapter IV, Henry VIII, World War II", "Chapter four, Henry the eighth, World War two"),
    ("Elizabeth II's reign, Louis XIV’s", "Elizabeth the second's reign, Louis the fourteenth's"),
    ("the XIX century", "the nineteenth century"),
    ("Chapter I began. I, Mary I, mix", "Chapter I began. I, Mary I, mix"),
    ("Henry VIII-style, Part VI's", "Henry the eighth style, Part V.I's"),
    ("R&D, Q&A", "R and D, Q and A"),
    ("C++ and C#", "C plus plus and C sharp"),
    ("and/or, he/she", "and or, he or she"),
    ("w/o milk", "without milk"),
    ("A/C: N/A", "A.C: not applicable"),
    ("don’t", "don't"),
    ("café naïve Zoë's co-op", "café naïve Zoë's co-op"),
]
_MARKUP = [
    ("**Bold** and *italic* and __both__", "Bold and italic and both"),
    ("`code` and snake_case", "code and snake case"),
    ("# Heading", "Heading"),
    ("- one\n- Two", "one. Two"),
    ("1. Wash\n2. Dry", "one, Wash. two, Dry"),
    ("> quoted", "quoted"),
    ("[the docs](https://x.com/a) here", "the docs here"),
    ("![a cat](cat.png)", "a cat"),
    ("as shown [1].", "as shown."),
    ("```python\nprint(1)\n``` Done.", "Done."),
    ("```\nnever closed", ""),
    ("Run ```ls -l``` and tell me what you see there.", "Run ls l and tell me what you see there."),
    ("Use ```ls```\nThen ```cd``` now.", "Use ls. Then cd now."),
    ("Look:\n```\nx = 1\n``` Then run ```ls``` now.", "Look: Then run ls now."),
    ("Here: ```sh\nls\n```\nDone.", "Here: Done."),
    ("````\n```\n```` Done.", "Done."),
    ("Hello~~~ how are you today?", "Hello how are you today?"),
    ("~~~ Welcome ~~~\nHow are you?", "Welcome. How are you?"),
    ("So:\n~~~python\nprint(1)\n~~~\nDone.", "So: Done."),
    ("~~~\n```\n~~~ Done.", "Done."),
    ("<b>bold</b> &amp; fine", "bold and fine"),
    ("| a | b |\n|---|---|\n| c | d |", "a, b, c, d,"),
    ("a\n---\nb", "a. b"),
    ("Wrapped\nhere.", "Wrapped here."),
    ("Hello 😀👍🏽 world ❤️ 1️⃣", "Hello world one"),
    (":) fine ;-)", "fine"),
    ('"Hello," she said (quietly) — then left...', "Hello, she said, quietly, then left…"),
    ("Well - no?!", "Well, no?"),
    ("wait -- what", "wait, what"),
    ("Settings > Account > Security", "Settings, Account, Security"),
    ("#TravelTips", "hashtag Travel Tips"),
    ("\x00He\u200bllo\x07 \ud83d there\ufffd", "He llo there"),
    ("你好。", "你好."),
]
_SILENT = [
    "",
    "   ",
    "...",
    "😀",
    "**",
    "---",
    "\n\n",
    "()",
    "\ud800",
    '"',
    "```\nx\n```",
    "\u200b",
]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [*_MONEY, *_NUMBERS, *_UNITS, *_TIME, *_CODES, *_KEYS, *_WORDS, *_MARKUP],
)
def test_spoken_form(text: str, spoken: str) -> None:
    assert normalize(text) == spoken


@pytest.mark.parametrize("text", _SILENT)
def test_nothing_to_say(text: str) -> None:
    assert normalize(text) == ""


_PIECES = st.sampled_from(
    [text for text, _ in (*_MONEY, *_NUMBERS, *_UNITS, *_TIME, *_CODES, *_KEYS, *_WORDS, *_MARKUP)]
)
_ANY_TEXT = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="$5.,-/:aA1%*[]()#'\"`<>~_ \n½x²", max_size=40),
    st.lists(_PIECES, max_size=4).map(" ".join),
    st.lists(_PIECES, max_size=3).map("".join),
)


@pytest.mark.parametrize(
    ("fence", "text", "spoken"),
    [
        ("```", "x = 1\n``` Done.", "Done."),
        ("```", "x = 1``` Run ```ls``` now.", "Run ls now."),
        ("~~~", "x = ```1```\n~~~\nDone.", "Done."),
        ("````", "```\nx = 1", ""),
    ],
)
def test_a_text_may_begin_within_a_code_block(fence: str, text: str, spoken: str) -> None:
    assert join_words(spoken_words(text, fence=fence)) == spoken
    assert join_words(unnormalized_words(text, fence=fence)) == spoken


@given(_ANY_TEXT)
@example("0²@0.AA")
@settings(max_examples=400)
def test_only_words_and_marks_come_out(text: str) -> None:
    for character in normalize(text):
        is_word = character.isalpha() or unicodedata.combining(character)
        assert is_word or character in " .,;:!?…'-", (text, normalize(text))


@given(_ANY_TEXT)
@settings(max_examples=400)
def test_words_speak_the_source_in_order(text: str) -> None:
    at = 0
    for word in spoken_words(text):
        assert 0 <= at <= word.start < word.end <= len(text)
        at = word.start


@given(st.lists(st.sampled_from(["sure", "we", "can", "do", "that", "tomorrow", "don't", "worry"])))
def test_plain_words_stay_as_they_are(words: list[str]) -> None:
    assert normalize(" ".join(words)) == " ".join(words)


def test_words_know_their_characters() -> None:
    text = "Pay $29.99 **now**."
    words = spoken_words(text)
    assert [text[word.start : word.end] for word in words] == ["Pay", *["$29.99"] * 5, "now"]
    assert words[-1].mark == "."


@pytest.mark.parametrize(
    "unit",
    [
        *("a.", "1x", "1,", "(", "A ", "[", "<a", "a@", "www.a.", "555-", "```", "- ", "e.g."),
        *("1/", "111 ", "1-", "5%-", "5 kg - ", "``` ", "\n~~~", "`a ", "1 kg-"),
        *("*1 ", "1#", "#A1-", "press # "),
    ],
)
def test_long_nonsense_is_read_in_time(unit: str) -> None:
    # Quadratic patterns take minutes here: the test's timeout is the assertion.
    normalize(unit * 5_000)
