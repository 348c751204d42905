"""Table of carriers: one row for each, by its name in paths (`/telephony/NAME/stream`)."""

from collections.abc import Mapping
from typing import Final

from . import asterisk, exotel, jambonz, plivo, telnyx, twilio, vonage
from .carrier import Carrier
from .webhook import Webhook

CARRIERS: Final[Mapping[str, Carrier]] = {
    "twilio": twilio.CARRIER,
    "telnyx": telnyx.CARRIER,
    "plivo": plivo.CARRIER,
    "exotel": exotel.CARRIER,
    "vonage": vonage.CARRIER,
    "jambonz": jambonz.CARRIER,
    "asterisk": asterisk.CARRIER,
}


def carrier_webhooks() -> dict[str, Webhook]:
    """Webhooks of the carriers that have one, by their names in paths."""
    return {name: each.webhook for name, each in CARRIERS.items() if each.webhook is not None}
