"""Short calls as timelines. Those in `RECORDED` also stand beside this file as traces."""

from tests.scenarios.guessing import GUESSING
from tests.scenarios.idling import HUNG_UP, IDLING
from tests.scenarios.leaving import LEAVING
from tests.scenarios.listening import HESITATION, LISTENER_HANGS, LISTENING, NORMAL, PUSHED
from tests.scenarios.opening import OPENING
from tests.scenarios.overlapping import BACKCHANNEL, DUCKED, MUSIC_ENDS, OVERLAPPING
from tests.scenarios.reopening import REOPENED, REOPENING
from tests.scenarios.replying import BARGE_IN_SPEAKING, NOISE, REPLYING
from tests.scenarios.timeline import Timeline

TIMELINES: tuple[Timeline, ...] = (
    LISTENING + REPLYING + REOPENING + OPENING + GUESSING + OVERLAPPING + IDLING + LEAVING
)

RECORDED = {
    "normal_turn": NORMAL,
    "hesitation": HESITATION,
    "barge_in": BARGE_IN_SPEAKING,
    "noise": NOISE,
    "backchannel": BACKCHANNEL,
    "backchannel_ducked": DUCKED,
    "music": MUSIC_ENDS,
    "reopened_turn": REOPENED,
    "push_to_talk": PUSHED,
    "stage_failure": LISTENER_HANGS,
    "silent_caller": HUNG_UP,
}
