"""`[telephony]`: calls that come from carriers."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from .values import Between, Matching

ENVIRONMENT: Final = Matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")
E164: Final = r"\+[1-9][0-9]{6,14}"
"""A telephone number with its country: ITU-T E.164."""
E164_PREFIX: Final = r"\+[1-9][0-9]{0,14}"
"""How such numbers begin: a country at least."""
Beginning = Annotated[str, Matching(E164_PREFIX, "the beginning of numbers, like +49")]
PUBLIC_URL: Final = r"(https://[A-Za-z0-9.\-]+(:[0-9]+)?(/[^\s?#@]*)?)?"

OnMachine = Literal["talk", "hang_up", "message"]
OnMenu = Literal["as_machine", "talk", "hang_up", "navigate"]


@dataclass(frozen=True, slots=True)
class TelephonySettings:
    """`[telephony]`: calls from carriers."""

    public_url: Annotated[str, Matching(PUBLIC_URL, "empty, or like https://voice.example.com")] = (
        ""
    )
    """Where carriers reach this server, through whatever stands in front of it: their signatures
    are over this address. Its host is answered to as those in `agent.allowed_hosts` are."""
    numbers: dict[str, str] = field(default_factory=dict)
    """Who answers at which number, a table like {"+493012345" = "sales"}. Others: the default
    agent."""
    lead_ms: Annotated[int, Between(20, 5000)] = 200
    """How far ahead of real time audio is sent to a carrier, which plays it from a queue of its
    own."""
    limit_s: Annotated[int, Between(1, 86_400)] = 3600
    """The longest call; carriers bill by the second."""
    silent_s: Annotated[int, Between(1, 3600)] = 20
    """A carrier that sends nothing at all for so long has gone without a word. Calls with silence
    in them are not silent: carriers send that too. Asterisk does not for phones that suppress
    silence; there the connection tells: pings of the WebSocket, or of TCP."""
    calls_from: Annotated[str, Matching(f"({E164})?", "empty, or a number like +493012345")] = ""
    """The number that `halfsec call` shows; one of your account's. Empty: the only one that
    `numbers` has."""
    calls_to: tuple[Beginning, ...] = ()
    """How numbers begin that may be called, a list like ["+49", "+431"], by whoever orders it and
    by transfers. Empty: commands on the server's machine call any number, keys none."""
    ringing_per_key: Annotated[int, Between(1, 1000)] = 4
    """Calls to others that may ring at once for one key. A line is kept for each."""
    ring_s: Annotated[int, Between(5, 600)] = 60
    """How long `halfsec call` lets it ring."""
    twilio_account_sid_env: Annotated[str, ENVIRONMENT] = "TWILIO_ACCOUNT_SID"
    """The environment variable that has the account's SID, for `halfsec call` and for transfers."""
    twilio_auth_token_env: Annotated[str, ENVIRONMENT] = "TWILIO_AUTH_TOKEN"
    """The environment variable that has the auth token, by which Twilio's signatures are checked.
    It is read when the server starts, as all of these."""
    own_twiml: bool = False
    """Streams of Twilio's are named by TwiML of your own, not by this server's webhook: then there
    is no token in them, and the signature of a stream's upgrade is enough. It holds for ever: who
    gets hold of one can begin calls with it."""
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
    """Where Asterisk's AudioSocket is listened for, for instance 9092; 0: nowhere. It has neither
    keys nor encryption: who may connect, `audiosocket_allow` says."""
    audiosocket_host: str = "127.0.0.1"
    """An address of this machine: 127.0.0.1 for an Asterisk beside this server, else the one in
    the network that both are in."""
    audiosocket_allow: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Addresses or networks of the Asterisks that may connect, as ["192.0.2.7", "10.0.0.0/24"].
    Everybody there calls without a key, also where clients need one."""
    audiosocket_agent: str = ""
    """Who answers there; empty: the default agent."""

    transfers: dict[str, str] = field(default_factory=dict)
    """To whom agents with the tool "phone:transfer" may transfer a call, a table like
    { sales = "+493012345" }, or an address like "sip:sales@example.com". The model knows the names,
    and never the numbers."""
    store_numbers: bool = False
    """Keep the numbers of caller and called in the records of calls, and log them. false: the last
    two digits."""
    limit_notice: str = "We have to end this call in half a minute."
    """Said half a minute before `limit_s`, in calls that may last longer than a minute. Empty:
    nothing is said."""
    on_machine: OnMachine = "talk"
    """What is done where a machine answers a call of ours: talk to it as to a person, hang up, or
    leave `machine_message` behind its beep and hang up. The carrier tells (a stream's parameter
    `answered_by`), or it is heard, in calls with the parameter `direction` = "outbound"."""
    machine_message: str = ""
    """Left with machines."""
    on_menu: OnMenu = "as_machine"
    """What is done where a menu answers ("for sales, press two"), in the same calls, known by its
    words: what `on_machine` says, talk to it as to a person, hang up, or navigate: the agent is
    told so, waits longer for pauses to end, and may press keys (tool "phone:press_keys")."""
    key_tones: bool = False
    """Listen for keys in the caller's sound, on lines whose carrier does not tell of them: with one
    that does, each would count twice."""
    record: Literal["no", "announced", "always"] = "no"
    """Whether calls by telephone are recorded where `agent.record_dir` says that calls are.
    announced: from when the caller has been told. always: from the first sound, where the law
    allows that or the caller knows it from elsewhere."""
    announcement: str = "This call is recorded."
    """Said before the greeting of a call whose recording is announced, whatever the caller says
    meanwhile. Empty: a tone."""
    idle_prompt_ms: Annotated[int, Between(0, 3_600_000)] = 12_000
    """As `agent.idle_prompt_ms`, of calls by telephone: whoever put the receiver aside is paid for
    by the second."""
    idle_hangup_ms: Annotated[int, Between(0, 3_600_000)] = 30_000
    """As `agent.idle_hangup_ms`."""

    transfer_ring_s: Annotated[int, Between(5, 600)] = 25
    """How long it rings where a call is transferred to. Machines answer after 20 to 30 s."""
    transfer_unanswered: str = "I am sorry, nobody answers there. What else can I do for you?"
    """Said to a caller who comes back to the agent, because nobody has taken his call there. Empty:
    the agent's greeting."""

    @property
    def public_host(self) -> str:
        """Empty where there is none."""
        return urlsplit(self.public_url).hostname or ""

    def address_of(self, path: str, *, is_socket: bool = False) -> str:
        """As carriers call it. There has to be a `public_url`."""
        address = self.public_url.rstrip("/") + path
        return address.replace("https", "wss", 1) if is_socket else address

    def may_call(self, number: str, *, unless_listed: bool) -> bool:
        """Whether a number, as E.164 has it, may be called. `unless_listed`: where no prefix is
        listed any may be."""
        return number.startswith(self.calls_to) if self.calls_to else unless_listed

    def agent_at(self, number: str) -> str | None:
        """Who answers at a number, which some carriers write without a plus."""
        bare = number.removeprefix("+")
        return self.numbers.get(f"+{bare}") or self.numbers.get(bare)
