"""`python -m tests.clients.tls_launcher CERTIFICATE serve ...`: the command `halfsec`, with TLS.

`key.pem` lies beside the certificate.
"""

import sys
from pathlib import Path
from typing import Any

import uvicorn

from agent.__main__ import main


class TlsConfig(uvicorn.Config):
    """uvicorn's, with the certificate named on the command line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        certificate = Path(sys.argv[1])
        kwargs |= {"ssl_certfile": certificate, "ssl_keyfile": certificate.with_name("key.pem")}
        super().__init__(*args, **kwargs)


if __name__ == "__main__":
    uvicorn.Config = TlsConfig  # type: ignore[misc]
    sys.exit(main(sys.argv[2:]))
