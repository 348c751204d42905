"""Numbers of turn-taking, each with what breaks when it is lower or higher.

Four more are measured in audio and belong to the voice detector, below this package:
`asr.EndpointingConfig` has the onset of speech (96 ms; over the agent's own voice 160 ms), the
pause that starts a final pass (80 ms, setting `asr.pause_ms`) and the voice that resumes an
utterance (64 ms). The weights of the end-of-turn model, and the silence per score, are data:
`end_of_turn_model.json`. Numbers of one rule alone stand in its module: `sound_rule.py` for other
languages than English, `dialogue/`, `reply_outcome.py`.
"""

from typing import Final

# End of turn

DANGLING_MS: Final = 1200
"""Silence after "and", "the", "um". Pauses of thought last up to 900 ms: lower cuts in on them.
Higher is no help: a caller who lost the thread waits for the agent."""

MAX_NUMBER_MS: Final = 2000
"""Longest silence in the middle of a number or of spelling, where callers look things up."""

PARTIAL_ANSWER_MS: Final = 2000
"""Silence after a part of what the agent asked for: three digits of a telephone number, a house
number without its street. Set, not fitted: as long as the longest pause within a number, because it
is one. Lower cuts in on callers who read from a card. Higher is dead air where the recognizer lost
a digit, and the caller has said all."""

ENDED_SOUND_LOG_ODDS: Final = 2.0
"""Log-odds of the sound from which a part of an answer waits no longer than the most (1000 ms by
"auto"): digits may be fewer than the pattern wants, because the recognizer joined or lost one, or
the question was read wrongly. Set, not fitted: 7 to 1 that the turn is over, the mirror of the
sound that clearly goes on. Lower takes the patience from callers whose groups fall at their end;
higher is two seconds of dead air after a complete answer."""

WHOLE_ANSWER_LOG_ODDS: Final = 2.0
"""Added to the score where the words are a whole answer to the agent's question: "Yes." after
"Shall I book it?", the fourth digit of a PIN. Set, not fitted: it brings a sound that is undecided
to the least wait, and leaves a sound that clearly goes on (-2) at the longest. Lower leaves "Yes."
waiting for nothing where the sound is unknown; higher cuts in on "Yes ... but not on Monday"."""

MAX_QUESTION_CHARS: Final = 300
"""Newest characters of a response that its question is looked for in: two sentences or three. Lower
loses the head of a long question; higher makes traces longer for nothing."""

SOUND_LIMIT: Final = 6.0
"""Bound of the audio turn model's log-odds in the score: no single feature outvotes all others."""

MESSAGE_END_LIMIT: Final = -10.0
"""Least log-probability of a message's end in the score, for the same reason; true ends lie above
-5."""

NEUTRAL_PAUSE_MS: Final = 300
"""Unit of the caller's own pauses in the score: about the median pause inside a sentence."""

STALL_GRACE_NS: Final = 400_000_000
"""Wait for audio beyond the silence that is still required. Lower races ordinary network jitter;
higher is dead air for clients that stop sending when the caller stops speaking."""

STALL_SILENCE_MS: Final = 60_000
"""Silence credited to an utterance whose audio stopped: more than any rule requires."""

# Early openers

OPENER_COST_SHARE: Final = 0.25
"""Cost of a cut-in by an opener, as a share of the cost of one by an answer. The odds that are
enough are proportional to the cost, so the threshold of the log-odds falls by the logarithm of it.
Set, not fitted: the caller loses a moment, no words of theirs are answered, and the turn goes on.
Lower speaks into every other pause of a caller who thinks; higher leaves no time between opener and
answer."""

OPENER_LEAD_MS: Final = 300
"""Least time from an opener to the answer's certainty: about as long as a short opener lasts.
Lower puts openers in front of answers that are sure a moment later, and so delays those. Higher
leaves hardly any by "auto", whose answers wait 1000 ms at most."""

# Preemptive generation

MAX_PREEMPTIVE: Final = 8
"""Preemptive responses per utterance. One in three hesitant turns has three pauses or more before
its end, and an end without a prepared response is answered later by the whole preparation. One in
fifteen has eight; such a caller is not about to be answered."""

# Re-opened turn

REOPEN_MS: Final = 450
"""Time from the response's first audio to the event of the caller's speech, which comes 96 ms after
its onset: an onset within the first 350 ms. A caller who begins so early was going on anyway,
because people take 200 ms at least to react to a voice, and has heard one word at most. Lower: the
two halves of a hesitant sentence become two messages with a scrap of an answer between them.
Higher: the model denies words that the caller heard and objects to."""

REOPEN_NS: Final = REOPEN_MS * 1_000_000

# Barge-in

RESUME_AFTER_BACKCHANNEL_MS: Final = 300
"""Silence after a backchannel before the response resumes. Lower talks over "yeah, but"; higher is
a hole in the response."""

OVERLAP_WITHOUT_WORDS_NS: Final = 540_000_000
"""Overlapping voice without a transcript that counts as an interruption, from the onset event
(which itself takes 160 ms of voice): 700 ms of voice. The first partial pass begins 200 ms after
the first voiced sample and takes 150 to 200 ms."""

OVERLAP_RECHECK_NS: Final = 500_000_000
"""Next look at an overlap whose words decide nothing yet. Partials come every 600 ms of voice."""

MAX_HOLD_NS: Final = 5_000_000_000
"""Longest hold of a response. A final pass takes 2 s on a loaded machine."""

MAX_BACKCHANNEL_PARTS: Final = 3
""""Yeah, yeah, okay" is a backchannel; a longer sequence is a turn."""

BRIEF_MS: Final = 320
"""Voice over the agent that is too short for anything but a vocalization or a word that interrupts:
of "uh-huh" and "sure" the recognizer made "I'm not." and "You do.", in 220 to 300 ms. Of what
interrupts, the shortest with two words that do not ("That's wrong") has 336. Lower stops the reply
for a hum; higher loses such words (`halfsec bench overlaps`, as the next four)."""

BRIEF_WORD_MS: Final = 380
"""The same where one word was recognized that is not known to interrupt: "Now" for "wow" has 352.
Lower stops for them; higher loses answers that nobody asked for ("Thursday", 430 and more)."""

SOUNDS_ALIKE_MS: Final = 800
"""The same where the words sound like a backchannel (`languages/sounds_alike.py`): "Write." for
"right", "Mama" for "mm-hmm". Set, not fitted: people draw out "wow" to a second. Lower stops for
those; higher resumes over a word that only happens to sound like one."""

RESUME_AFTER_BRIEF_MS: Final = 600
"""Silence after a sound that its length makes a backchannel, before the response resumes: its words
may be the first of something ("Well ..."). Set, not fitted. Lower talks over what follows; higher
is a hole in the response after a misheard "mm-hmm"."""

SAID_AGAIN_NS: Final = 10_000_000_000
"""Time in which the same short word counts as meant, the second time: "Home." that was taken for a
sound. Lower ignores a caller who says it again a sentence later; higher stops for two "mm-hmm" that
are misheard alike."""

FLOOR_AFTER_MS: Final = 480
"""Voice over the agent from which a partial transcript may stop the response, unless it begins with
a word that interrupts and goes on: what is over by then is judged by its final words, 230 ms after
its end. Lower stops for the first half of a "wow" ("What"); higher lets a client that ducks play on
for longer."""

MIN_ECHO_WORDS: Final = 2
"""Consecutive words shared with the agent's speech. One shared word proves nothing."""

ECHO_SHARE: Final = 0.75
"""Share of the words that match the agent's, in order: echo is recognized badly."""

ECHO_WINDOW_WORDS: Final = 40
"""Newest words of the agent that may come back as echo: 15 s. A room answers within half a second,
but the caller's own stretch of audio goes back as far as it is long."""

ANSWER_WITHIN_WORDS: Final = 3
"""Words that the agent may have gone on with when the answer to its question arrives."""

# Silent caller

MAX_IDLE_PROMPTS: Final = 2
"""Prompts in a row. A third "Are you still there?" talks to an empty room."""

# Announcements of the agent's own accord

ANNOUNCE_AFTER_NS: Final = 1_000_000_000
"""Silence of both parties before the agent announces the result of a tool in the background. Lower
cuts in on a caller who is about to answer the agent's last words: people take 200 to 700 ms, and
their speech is known 100 ms later. Higher is dead air for a caller who waits for the result."""

# Watchdogs: the last resort where an event never arrives

SPEECH_DEADLINE_NS: Final = 120_000_000_000
"""Speech without a pause. People breathe every few seconds, so this is noise, or a detector that
lost the utterance. Lower would cut off a caller who reads aloud beside a running fan."""

TRANSCRIPT_DEADLINE_NS: Final = 30_000_000_000
"""Final transcript. The speech input waits 10 s, and longer for long utterances; lower than that
would end turns that it still answers, such as a minute of speech sent at once to a busy machine."""

PREPARING_DEADLINE_NS: Final = 20_000_000_000
"""First audio of a response. The stages have deadlines of their own, all shorter."""

SPEAKING_DEADLINE_NS: Final = 60_000_000_000
"""Heartbeat of a response that is being sent; it comes every 5 s. A stage that other calls keep
busy may be silent for long in between, but not for so long."""

TRAILING_DEADLINE_NS: Final = 20_000_000_000
"""End of playback. Audio is sent at most 5 s ahead (the bound of `agent.lead_ms`)."""
