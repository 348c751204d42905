"""Address of a PostgreSQL database, which shows no credentials wherever it is printed.

`str()` and `repr()` of a `PostgresUrl` leave out user, password and parameters, so that a log line,
an error, a trace, `/readyz`, `halfsec doctor` and a fingerprint of the settings can't hold them.
The whole address is read only to connect (`reveal`).

libpq quotes the parts of an address that it can't parse. An address is therefore parsed here first,
strictly: what passes is never quoted, and what does not is refused without being repeated.
"""

import re
from typing import Final
from urllib.parse import parse_qsl, unquote

POSTGRES_FORM: Final = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"

INSTALL_POSTGRES: Final = "pip install 'halfsec[postgres]'"

HIDDEN: Final = "***"

_TEXT: Final = r"(?:[^\s/?#@%\x00-\x1f]|%(?!00)[0-9A-Fa-f]{2})"
_HOST: Final = r"(?:\[[0-9A-Fa-f:.%]+\]|(?:[A-Za-z0-9._~-]|%(?!00)[0-9A-Fa-f]{2})*)(?::[0-9]{1,5})?"
_VALUE: Final = r"(?:[^\s#&=%\x00-\x1f]|%(?!00)[0-9A-Fa-f]{2})"
_URL: Final = re.compile(
    rf"(?P<scheme>postgres(?:ql)?)://(?P<login>{_TEXT}*@)?(?P<hosts>{_HOST}(?:,{_HOST})*)"
    rf"/(?P<database>{_TEXT}+)(?:\?(?P<query>[a-z_]+={_VALUE}*(?:&[a-z_]+={_VALUE}*)*)?)?"
)
_MEANT: Final = re.compile(r"postgres(?:ql)?(?::|//)", re.IGNORECASE)
"""Beginning of what is meant as an address. A forgotten colon would make it the path of a file, and
an error would repeat its password."""
_SECRET_PARAMETERS: Final = ("password", "sslpassword")


class PostgresUrl:
    """Address of a database: `postgresql://USER:PASSWORD@HOST:5432/DATABASE`. Immutable."""

    __slots__ = ("_shown", "_url")

    def __init__(self, url: str) -> None:
        """Raises ValueError with the predicate of a sentence, which quotes nothing of the
        address."""
        found = _URL.fullmatch(url)
        if found is None:
            raise ValueError(
                f"must be like {POSTGRES_FORM}, with special characters of the password as %XX"
            )
        self._url = url
        login = f"{HIDDEN}@" if found["login"] else ""
        self._shown = f"postgresql://{login}{found['hosts']}/{found['database']}"

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"'{self._shown}'"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PostgresUrl) and self._url == other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def reveal(self) -> str:
        """The address with its credentials: for the driver alone."""
        return self._url

    def redacted(self, text: str) -> str:
        """A message of the driver on one line, without the password and this address."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return " ".join(text.split())

    def _secrets(self) -> set[str]:
        found = _URL.fullmatch(self._url)
        assert found is not None  # the constructor has checked it
        _, _, password = (found["login"] or "").removesuffix("@").partition(":")
        secrets = {self._url, password, unquote(password)}
        for name, value in parse_qsl(found["query"] or ""):
            if name in _SECRET_PARAMETERS:
                secrets.add(value)
        return {secret for secret in secrets if secret}


def is_postgres(text: str) -> bool:
    """True for what is meant as the address of a PostgreSQL database, valid or not."""
    return _MEANT.match(text) is not None
