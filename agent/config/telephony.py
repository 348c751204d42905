"""Settings section `[telephony]`: calls from and to telephone carriers."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import languages

from .values import Between, Matching

ENVIRONMENT: Final = Matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")
E164: Final = r"\+[1-9][0-9]{6,14}"
"""Pattern of a telephone number with its country code: ITU-T E.164."""
E164_PREFIX: Final = r"\+[1-9][0-9]{0,14}"
"""Pattern of the beginning of such a number: at least the country code."""
Beginning = Annotated[str, Matching(E164_PREFIX, "the beginning of numbers, like +49")]
PUBLIC_URL: Final = r"(https://[A-Za-z0-9.\-]+(:[0-9]+)?(/[^\s?#@]*)?)?"

OnMachine = Literal["talk", "hang_up", "message"]
OnMenu = Literal["as_machine", "talk", "hang_up", "navigate"]


@dataclass(frozen=True, slots=True)
class TelephonySettings:
    """`[telephony]`: calls from and to carriers."""

    public_url: Annotated[str, Matching(PUBLIC_URL, "empty, or like https://voice.example.com")] = (
        ""
    )
    """Address at which carriers reach this server, through the proxy or tunnel in front of it:
    their signatures cover this address. Its host is allowed like those in `agent.allowed_hosts`."""
    numbers: dict[str, str] = field(default_factory=dict)
    """The agent of each number, a table like {"+493012345" = "sales"}. Other numbers: the default
    agent."""
    lead_ms: Annotated[int, Between(20, 5000)] = 200
    """How far ahead of real time audio is sent to a carrier, which plays it from a queue of its
    own."""
    limit_s: Annotated[int, Between(1, 86_400)] = 3600
    """The longest call; carriers bill by the second."""
    silent_s: Annotated[int, Between(1, 3600)] = 20
    """Seconds without any data from the carrier after which a call is ended. Silence of the caller
    is data: carriers send it. Asterisk does not for phones that suppress silence; there a lost
    connection is detected by pings of the WebSocket, or of TCP."""
    calls_from: Annotated[str, Matching(f"({E164})?", "empty, or a number like +493012345")] = ""
    """The caller number of `halfsec call`; one of your account. Empty: the only one in
    `numbers`."""
    calls_to: tuple[Beginning, ...] = ()
    """Beginnings of the numbers that may be called, a list like ["+49", "+431"], by outbound calls
    and by transfers. Empty: commands on the server's machine may call any number, keys none."""
    ringing_per_key: Annotated[int, Between(1, 1000)] = 4
    """Most outbound calls that may ring at once for one key. Each reserves a session."""
    ring_s: Annotated[int, Between(5, 600)] = 60
    """Longest ringing of `halfsec call`, in seconds."""
    twilio_account_sid_env: Annotated[str, ENVIRONMENT] = "TWILIO_ACCOUNT_SID"
    """The environment variable that has the account's SID, for `halfsec call` and for transfers."""
    twilio_auth_token_env: Annotated[str, ENVIRONMENT] = "TWILIO_AUTH_TOKEN"
    """The environment variable that has the auth token, by which Twilio's signatures are checked.
    It is read when the server starts, as all of these."""
    own_twiml: bool = False
    """Twilio's streams come from TwiML of your own, not from this server's webhook: then they have
    no token, and the signature of the WebSocket upgrade is enough. Such a signature never expires:
    anyone who obtains one can begin calls with it."""
    telnyx_public_key: Annotated[
        str, Matching(r"([A-Za-z0-9+/]{43}=)?", "empty, or the key that Telnyx's portal shows")
    ] = ""
    """Telnyx's public key (Mission Control, Keys & Credentials), by which its signatures are
    checked. It is no secret."""
    plivo_auth_token_env: Annotated[str, ENVIRONMENT] = "PLIVO_AUTH_TOKEN"
    """The environment variable that has Plivo's auth token."""
    vonage_signature_secret_env: Annotated[str, ENVIRONMENT] = "VONAGE_SIGNATURE_SECRET"
    """The environment variable that has Vonage's signature secret. Needs the extra `jwt`."""
    jambonz_webhook_secret_env: Annotated[str, ENVIRONMENT] = "JAMBONZ_WEBHOOK_SECRET"
    """The environment variable that has the webhook secret of jambonz."""

    audiosocket_port: Annotated[int, Between(0, 65_535)] = 0
    """Port for Asterisk's AudioSocket, for instance 9092; 0: none. The protocol has neither keys
    nor encryption: `audiosocket_allow` limits who may connect."""
    audiosocket_host: str = "127.0.0.1"
    """Address to listen on: 127.0.0.1 for an Asterisk on this machine, else this machine's address
    in the network of both."""
    audiosocket_allow: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Addresses or networks that may connect, a list like ["192.0.2.7", "10.0.0.0/24"]. Calls from
    there need no key, also where clients need one."""
    audiosocket_agent: str = ""
    """The agent that answers there; empty: the default agent."""

    transfers: dict[str, str] = field(default_factory=dict)
    """Targets to which agents with the tool "phone:transfer" may transfer a call, a table like
    { sales = "+493012345" }, with numbers or addresses like "sip:sales@example.com". The model gets
    the names, and never the numbers."""
    store_numbers: bool = False
    """Keep the full numbers of caller and callee in the call records, and log them. false: the last
    two digits."""
    limit_notice: str = languages.ENGLISH.sentences.limit_notice
    """Spoken half a minute before `limit_s`, in calls that may last longer than a minute. Empty:
    nothing is spoken."""
    on_machine: OnMachine = "talk"
    """What to do where an answering machine answers an outbound call: talk as to a person, hang up,
    or leave `machine_message` after the beep and hang up. The machine is reported by the carrier (a
    stream's parameter `answered_by`), or detected by its audio, in calls with the parameter
    `direction` = "outbound"."""
    machine_message: str = ""
    """Message for answering machines."""
    on_menu: OnMenu = "as_machine"
    """What to do where a menu (IVR) answers ("for sales, press two"), in the same calls, detected
    by its words: as `on_machine`, talk as to a person, hang up, or navigate: the agent is informed,
    waits longer for pauses to end, and may press keys (tool "phone:press_keys")."""
    key_tones: bool = False
    """Detect DTMF keys in the caller's audio, for carriers that do not report them: with one that
    does, each key would count twice."""
    record: Literal["no", "announced", "always"] = "no"
    """Recording of telephone calls, where `agent.record_dir` is set. announced: from the end of the
    announcement. always: from the first sound, where the law allows that or the caller was
    informed otherwise."""
    announcement: str = languages.ENGLISH.sentences.announcement
    """Spoken before the greeting of a call with an announced recording; the caller can't interrupt
    it. Empty: a tone."""
    idle_prompt_ms: Annotated[int, Between(0, 3_600_000)] = 12_000
    """Like `agent.idle_prompt_ms`, for telephone calls: an abandoned receiver costs money every
    second."""
    idle_hangup_ms: Annotated[int, Between(0, 3_600_000)] = 30_000
    """Like `agent.idle_hangup_ms`, for telephone calls."""

    transfer_ring_s: Annotated[int, Between(5, 600)] = 25
    """Longest ringing at the target of a transfer, in seconds. Answering machines answer after 20
    to 30 s."""
    transfer_unanswered: str = languages.ENGLISH.sentences.transfer_unanswered
    """Spoken to a caller who returns to the agent, because the transfer was not answered. Empty:
    the agent's greeting."""

    @property
    def public_host(self) -> str:
        """Host of `public_url`; empty without one."""
        return urlsplit(self.public_url).hostname or ""

    def address_of(self, path: str, *, is_socket: bool = False) -> str:
        """Public address of a path, for carriers. Needs `public_url`."""
        address = self.public_url.rstrip("/") + path
        return address.replace("https", "wss", 1) if is_socket else address

    def may_call(self, number: str, *, unless_listed: bool) -> bool:
        """True where a number in E.164 form may be called. `unless_listed`: the answer where
        `calls_to` is empty."""
        return number.startswith(self.calls_to) if self.calls_to else unless_listed

    def agent_at(self, number: str) -> str | None:
        """The agent of a number, which some carriers write without a plus; None without one."""
        bare = number.removeprefix("+")
        return self.numbers.get(f"+{bare}") or self.numbers.get(bare)
