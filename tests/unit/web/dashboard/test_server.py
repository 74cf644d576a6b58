"""The server of the dashboard: the addresses at which it does not listen."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.client.sync.node import Node
from dios.errors import InvalidError

pytest.importorskip("nicegui", reason="the extra web is missing")

from dios.web.dashboard.server import DashboardPlace, serve


def refuse() -> Node:
    """No dashboard may ask the node before it listens."""
    raise AssertionError("the node was asked")


def never(link: str) -> None:
    """No dashboard may announce an address at which it does not listen."""
    raise AssertionError(link)


@pytest.mark.parametrize("certificate", [None, Path("/c")])
@pytest.mark.parametrize("host", ["localhost", "n1.example", "[::1]", "127.0.0.1:80"])
def test_a_dashboard_listens_at_an_ip_address_only(host: str, certificate: Path | None) -> None:
    """A name in place of an address is an error that says what to give, also with a certificate."""
    place = DashboardPlace(host, 0, certificate, certificate)
    with pytest.raises(InvalidError, match="is no IP address"):
        serve(refuse, place, never, never)


def test_an_address_of_other_machines_needs_a_certificate() -> None:
    """Without HTTPS a dashboard listens on loopback."""
    with pytest.raises(InvalidError, match="--certificate"):
        serve(refuse, DashboardPlace("192.0.2.1"), never, never)
