"""Startup check of the port: can the server listen there, and what to do where it can't."""

import errno
import http.client
import json
import socket
import ssl
from typing import Final

from agent.http.refusal import REALM

_ASK_TIMEOUT_S: Final = 2.0
"""Time limit in seconds for the program on the port to identify itself; halfsec takes
milliseconds."""


def listening_problem(host: str, port: int) -> str | None:
    """Reason why the address can't be used, as a sentence for the user; None where it is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does, so that a port that is only in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return explain(host, port, error)
    return None


def halfsec_runs(host: str, port: int) -> bool:
    """True if the program that listens there is halfsec, with TLS or without."""
    unchecked = ssl._create_unverified_context()  # no secret is sent
    try:
        return _is_halfsec(http.client.HTTPConnection(host, port, timeout=_ASK_TIMEOUT_S)) or (
            _is_halfsec(
                http.client.HTTPSConnection(host, port, timeout=_ASK_TIMEOUT_S, context=unchecked)
            )
        )
    except TimeoutError:
        return False


def _is_halfsec(connection: http.client.HTTPConnection) -> bool:
    """Raises TimeoutError."""
    try:
        connection.request("GET", "/v1/models")
        answer = connection.getresponse()
        if answer.status == 401:
            return f'realm="{REALM}"' in answer.getheader("WWW-Authenticate", "")
        models = json.loads(answer.read(1 << 20))["data"]
        return any(model["owned_by"] == "halfsec" for model in models)
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return False
    finally:
        connection.close()


def explain(host: str, port: int, error: OSError, setting: str = "agent.port") -> str:
    """Explain why listening failed, with the remedy. `setting`: the key that sets the port."""
    other = port + 1 if port < 65_535 else 8080
    choose = f"Choose another port: halfsec serve --port {other}, or PORT={other} make run."
    if setting != "agent.port":
        choose = f"Choose another port with the setting {setting}."
    if error.errno == errno.EADDRINUSE and halfsec_runs(host, port):
        return f"halfsec already runs on {host}:{port}. {choose}"
    if error.errno == errno.EADDRINUSE:
        return f"Can't listen on {host}:{port}: something else does. {choose}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Can't listen on {host}:{port}: {error.strerror}. {choose}"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return (
            f"Can't listen on {host}:{port}: {host} is no address of this machine. 127.0.0.1 is "
            "for this machine alone, 0.0.0.0 for all its addresses."
        )
    return f"Can't listen on {host}:{port}: {error.strerror}."
