"""Private names of the WebRTC library: those that are used are looked for, and there."""

import ast
import re
from pathlib import Path

import aioice.ice
import aiortc
import pytest

from agent.webrtc import peer as peer_module
from agent.webrtc import sctp_guard
from agent.webrtc.peer import IncompatibleLibraryError, load
from agent.webrtc.private_names import ATTRIBUTES, METHODS, missing


def test_the_pinned_versions_have_every_name() -> None:
    assert missing() == []
    load()


def test_a_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def __init__(self) -> None:
            self._protocols: list[object] = []

        def data_received(self) -> None: ...

    monkeypatch.delattr(aiortc.RTCRtpReceiver, "_send_rtcp")
    monkeypatch.setattr(aioice.ice, "Connection", Other)
    lacking = ["get_component_candidates", "check_incoming"]
    lacking += [
        "_check_list",
        "_nominated",
        "_queue",
        "_remote_candidates",
        "stun_server",
        "turn_server",
    ]
    expected = [f"aioice.ice.Connection.{name}" for name in lacking]
    assert missing() == ["aiortc.RTCRtpReceiver._send_rtcp", *expected]
    with pytest.raises(IncompatibleLibraryError, match=re.escape(", ".join(expected))):
        load()


def test_every_private_name_that_the_modules_use_is_looked_for() -> None:
    """Those are all names with an underscore, but for `self`'s."""
    used = {
        node.attr
        for module in (peer_module, sctp_guard)
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }
    listed = {name for each in (METHODS, ATTRIBUTES) for names in each.values() for name in names}
    assert used - listed == set()
    assert len(used) > 20
