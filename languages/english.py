"""English: sentences, and the words that turn-taking knows.

The end-of-turn model has word lists of its own (`agent/turn_taking/end_of_turn_model.py`), on which
it was fitted; the normalizer's rules are code (`tts/text/normalize.py`).
"""

from typing import Final

from .profile import Keypad, LanguageProfile, Sentences, TurnWords, phrases, word_set

PROFILE: Final = LanguageProfile(
    code="en",
    name="English",
    voice="hibari",
    keypad=Keypad(
        "star",
        "pound",
        verbs="press|pressing|dial|dialing",
        links="push|hit|tap|by|then|or|with|enter|type|key",
        nouns="key|button|sign|symbol",
    ),
    answer_in="",
    sentences=Sentences(
        apology="Sorry, something went wrong on my side. Could you say that again?",
        idle_prompt="Are you still there?",
        tool_wait="One moment.",
        openers=("One moment,", "Let me see,"),
        limit_notice="We have to end this call in half a minute.",
        announcement="This call is recorded.",
        transfer_unanswered="I am sorry, nobody answers there. What else can I do for you?",
        calibration="This is how loud I usually speak, when nobody asks me to speak up.",
    ),
    turn_words=TurnWords(
        # Not "no", "wait", "well", "but": they begin something. "You" and "thank you" are what
        # Whisper writes for noise.
        backchannels=phrases(
            "mm; mm hmm; mhm; mmhmm; mmm; hm; hmm; uh huh; aha; ah; oh; ooh; yeah; yep; yup; yes; "
            "okay; ok; k; alright; all right; right; i see; sure; got it; of course; exactly; "
            "indeed; true; good; great; cool; nice; fine; wow; really; oh really; oh i see; oh "
            "okay; oh yeah; oh wow; oh my; whoa; uh; gotcha; totally; absolutely; definitely; "
            "perfect; awesome; amazing; excellent; interesting; i know; makes sense; "
            "that makes sense; sounds good; that's right; that's true; thanks; thank you; you"
        ),
        interruptions=frozenset({
            "stop", "wait", "no", "nope", "hold", "hang", "but", "actually", "what", "sorry",
            "pardon", "hey", "excuse", "listen",
        }),
        requests=word_set(
            "who when where why how which whose huh hello hi bye goodbye help please again repeat "
            "cancel quit exit next skip back more less enough never don't can't louder quieter end "
            "undo call now mute pause off out home phone under "
            "slower faster operator agent human question quiet silence shut monday tuesday "
            "wednesday thursday friday saturday sunday today tomorrow tonight one two three four "
            "five six seven eight nine ten eleven twelve"
        ),
        asking_back=word_set("hm hmm huh mm okay ok k alright all right sure you"),
    ),
    has_word_features=True,
)  # fmt: skip
