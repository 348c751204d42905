"""What carriers of telephone calls ask over HTTP when a call comes in, one module for each.

A webhook is asked what is to become of a call, and its answer says: stream it to us. Each module
knows how its carrier signs what it asks, what it calls the numbers, and in which language it takes
the answer. They are pure: no I/O, no clock. `agent/telephony/webhooks.py` serves them.
"""

from collections.abc import Mapping
from typing import Final

from .exotel import ExotelWebhook
from .jambonz import JambonzWebhook
from .plivo import PlivoWebhook
from .telnyx import TelnyxWebhook
from .twilio import TwilioWebhook
from .vonage import VonageWebhook
from .webhook import Webhook

WEBHOOKS: Final[Mapping[str, Webhook]] = {
    "twilio": TwilioWebhook(),
    "telnyx": TelnyxWebhook(),
    "plivo": PlivoWebhook(),
    "exotel": ExotelWebhook(),
    "vonage": VonageWebhook(),
    "jambonz": JambonzWebhook(),
}
"""By what stands for the carrier in a path."""
