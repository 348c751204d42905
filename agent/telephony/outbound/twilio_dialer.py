"""Twilio dialer: places calls by the REST API.

Written from https://www.twilio.com/docs/voice/api/call-resource#create-a-call-resource and
https://www.twilio.com/docs/voice/answering-machine-detection.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from .order import DialError, OutboundCall, PlacedCall
from .twilio_account import TwilioAccount

TIMEOUT_S: Final = 15.0
"""Time limit of Twilio's answer, which takes half a second."""

SPARE_S: Final = 30
"""Lead of Twilio's time limit over ours, which is announced to the caller. Twilio's also ends calls
whose stream was lost, and transferred calls."""
MAX_LIMIT_S: Final = 4 * 3600
"""Longest call that Twilio allows to every account."""

_ERRORS: Final = "https://www.twilio.com/docs/errors/"


class TwilioDialer:
    """A `Dialer`."""

    def __init__(self, account: TwilioAccount) -> None:
        self._account = account

    @property
    def problem(self) -> str | None:
        """The missing library or setting, as a sentence; None: ready."""
        return self._account.problem

    async def place(self, order: OutboundCall) -> PlacedCall:
        """Place a call by the REST API. Raises DialError. Cancelling the wait does not take back an
        order on its way."""
        return await self._account.run(partial(self._create, order))

    def _create(self, order: OutboundCall) -> PlacedCall:
        """Blocks. Raises DialError."""
        from twilio.base.exceptions import TwilioException, TwilioRestException

        try:
            call = self._account.client(TIMEOUT_S).calls.create(
                to=order.to,
                from_=order.shown_number,
                twiml=order.instructions,
                timeout=order.ring_s,
                time_limit=min(order.limit_s + SPARE_S, MAX_LIMIT_S),
                status_callback=order.status_url,
                status_callback_event=["completed"],  # busy, failed, no answer: all of them
                **_detection(order),
            )
        except TwilioRestException as error:
            raise DialError(self._refusal(error.status, error.code, error.msg)) from None
        except (TwilioException, OSError) as error:  # those of `requests` are OSErrors
            if _was_sent(error):
                raise DialError(
                    f"Twilio did not answer when it had the order ({_line(_cause(error))}). The "
                    "call may ring all the same; Twilio's console shows it.",
                    may_ring=True,
                ) from None
            raise DialError(f"Twilio can't be reached: {_line(_cause(error))}") from None
        return PlacedCall(str(call.sid), str(call.status))

    def _refusal(self, status: int, code: int | None, message: str) -> str:
        if status == 401:
            return (
                "Twilio does not know this account: look at "
                f"{' and '.join(self._account.names)} in the server's environment."
            )
        where = f" ({_ERRORS}{code})" if code and code != status else f" (status {status})"
        return f"Twilio refused the call: {_line(message)}{where}"


def _detection(order: OutboundCall) -> Mapping[str, str]:
    """Parameters of asynchronous answering machine detection. Twilio's synchronous detection,
    before the instructions run, leaves people in silence for seconds, and its result does not reach
    a stream whose instructions came with the order."""
    if order.on_machine == "talk":
        return {}
    return {
        # A message needs the end of the greeting; hanging up does not.
        "machine_detection": "DetectMessageEnd" if order.on_machine == "message" else "Enable",
        "async_amd": "true",
        "async_amd_status_callback": order.status_url,
    }


def _was_sent(error: Exception) -> bool:
    """True if the order may have reached Twilio, without an answer."""
    from requests import ReadTimeout
    from urllib3.exceptions import ProtocolError

    return isinstance(error, ReadTimeout) or isinstance(_cause(error), ProtocolError)


def _cause(error: Exception) -> object:
    """Cause of an error of `requests`, without its list of attempts."""
    if not error.args:
        return error
    return getattr(error.args[0], "reason", error.args[0])


def _line(problem: object) -> str:
    return " ".join(str(problem).split())[:300] or type(problem).__name__
