"""Threads of requests to Twilio, which are not those that replies need."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.config.telephony import TelephonySettings
from agent.telephony.outbound.order import OutboundCall
from agent.telephony.outbound.transfer import TransferOrder, TwilioTransfer
from agent.telephony.outbound.twilio_account import MAX_THREADS, TwilioAccount
from agent.telephony.outbound.twilio_dialer import TwilioDialer
from tests.support.telephony.outbound_calls import ACCOUNT, TwilioApi
from tests.support.telephony.telephony_server import AUTH_TOKEN

ORDER = OutboundCall("+493099999", "+493012345", "<Response/>", "https://x.example", 60, 3600)


@pytest.fixture
def account_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWILIO_ACCOUNT_SID", ACCOUNT)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)


@pytest.mark.usefixtures("account_variables")
async def test_requests_to_twilio_take_none_of_the_default_threads() -> None:
    no_threads = ThreadPoolExecutor()
    no_threads.shutdown()
    asyncio.get_running_loop().set_default_executor(no_threads)
    api, settings = TwilioApi(), TelephonySettings()
    account = TwilioAccount(settings, api)
    assert (await TwilioDialer(account).place(ORDER)).call_id == "CA1"
    api.broken = ConnectionError("reached")
    transferred = TwilioTransfer(settings, account)(TransferOrder("CA1", "+49301", "default", 60))
    await asyncio.wait({transferred})
    assert transferred.exception() is not None
    assert len(api.lost) == 1, "the request was made"
    account.close()


async def test_the_end_waits_for_no_request_and_begins_none() -> None:
    account = TwilioAccount(TelephonySettings())
    may_go_on, num_begun = threading.Event(), threading.Semaphore(0)

    def request() -> str:
        num_begun.release()
        may_go_on.wait()
        return "answered"

    requests = [account.run(request) for _ in range(MAX_THREADS + 1)]
    *begun, waiting = requests
    try:
        for _ in begun:
            num_begun.acquire()
        account.close()  # would never return if it waited
        assert not any(each.done() for each in begun)
    finally:
        may_go_on.set()
    assert await asyncio.gather(*begun) == MAX_THREADS * ["answered"]
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not num_begun.acquire(blocking=False)
