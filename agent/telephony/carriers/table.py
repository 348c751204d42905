"""Table of carriers: one row for each."""

from typing import Final

from . import asterisk, exotel, jambonz, plivo, telnyx, twilio, vonage
from .carrier import Carrier

CARRIERS: Final[dict[str, Carrier]] = {
    carrier.key: carrier
    for carrier in (
        twilio.CARRIER,
        telnyx.CARRIER,
        plivo.CARRIER,
        exotel.CARRIER,
        vonage.CARRIER,
        jambonz.CARRIER,
        asterisk.CARRIER,
    )
}
"""By key. AudioSocket has no WebSocket and no path: `audiosocket_listener.py` serves it."""
