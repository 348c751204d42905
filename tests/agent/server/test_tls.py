"""`halfsec serve` for the network: with TLS of its own and keys, as a process."""

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from agent.client.call import connect
from agent.client.errors import ConnectError
from agent.config.layers import load_config
from agent.config.local_urls import local_voice_url
from agent.http.auth.cli_credentials import entry_here
from agent.http.auth.keys import KeyFile
from agent.http.auth.local_key import local_key
from agent.http.auth.principal import KeyLimits
from agent.http.auth.tls import trust
from latency_budget.account.clock import unix_ns
from tests.support.models import model_path
from tests.support.service.service_process import PATIENCE_S, service

pytestmark = pytest.mark.models


async def until(http: httpx.AsyncClient, key: str, status: int) -> None:
    """Ask with this key until the answer is that."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
            if answer.status_code == status:
                return


async def test_a_server_for_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").symlink_to(model_path("whisper-tiny.en").parent)
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.delenv("HALFSEC_API_KEY", raising=False)
    keys = KeyFile(tmp_path / "keys.json")
    now_unix_s = unix_ns() // 10**9
    ana = keys.add("ana", KeyLimits(), now_unix_s)
    async with service("--host", "0.0.0.0", "--tls-self-signed", home=tmp_path) as running:
        await running.listening()
        flags = {"host": "0.0.0.0", "port": running.port}
        config = load_config(
            {**{f"agent.{k}": v for k, v in flags.items()}, "access.tls_self_signed": True}
        )
        certificate = trust(str(tmp_path / "tls" / "cert.pem"))
        base = f"https://localhost:{running.port}"
        async with httpx.AsyncClient(
            timeout=60, verify=certificate, base_url=base, trust_env=False
        ) as http:
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/v1/models")).status_code == 401
            await until(http, ana, 200)
            # Keys that come and go while it runs.
            ben = keys.add("ben", KeyLimits(), now_unix_s)
            await until(http, ben, 200)
            keys.revoke("ben")
            await until(http, ben, 401)

        url, entry = local_voice_url(config), entry_here(config)
        assert url.startswith("wss://127.0.0.1")
        async with connect(url, api_key=entry.api_key, tls=entry.tls, wait_s=PATIENCE_S) as call:
            assert call.session["instructions"]
        with pytest.raises(ConnectError, match="needs a key"):
            async with connect(url, tls=entry.tls):
                pass
        with pytest.raises(ConnectError, match="not to be trusted"):
            async with connect(url, api_key=ana, tls=ssl.create_default_context()):
                pass
        with pytest.raises(ConnectError):
            async with connect(url.replace("wss", "ws"), api_key=ana):
                pass
        running.stop()
        status, errors = await running.ended()
    assert status == 0
    assert "SHA-256 fingerprint is" in errors
    assert ana not in errors
    assert ana not in "".join(running.lines)
    assert local_key(running.port) is None
