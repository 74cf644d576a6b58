"""Nodes that nobody told what their disks and links carry: they find it out, and runs are placed by it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import LOADED_S, Site

pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.extended, pytest.mark.long]

RESOURCES = {"--disk-io": ("disk", "disk io"), "--net": ("network", "network")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three scheduled nodes without any setting of bandwidth, on the loopback of this machine."""
    someone = Person(tmp_path_factory.mktemp("home"))
    del someone.environment["DIOS_COORDINATOR"]
    someone.environment.pop("DIOS_MEASURE", None)
    someone.types("dios up --nodes 3 --pool-size 1")
    try:
        live_site = Site(someone)
        wait_until(live_site.is_whole, "one coordinator attends to all nodes and has read them", LOADED_S)
        yield live_site
    finally:
        someone.types("dios down")


def capacity_of(site: Site, resource: str) -> int:
    """Return the bytes per second of the first node's resource, 0 while it is unknown."""
    described = json.loads(site.person.types("dios node describe n1 --json").stdout)
    row = described["capacities"][resource]
    assert (row["source"] == "measured") == (row["bytes_s"] is not None), row
    return int(row["bytes_s"] or 0)


@pytest.mark.parametrize("option", RESOURCES)
def test_runs_do_not_share_a_node_that_cannot_carry_both(site: Site, option: str) -> None:
    """Two runs that need most of a node's measured bandwidth: one waits, and `explain` says for what."""
    resource, word = RESOURCES[option]
    wait_until(lambda: capacity_of(site, resource) > 0, f"n1 has measured its {resource}", LOADED_S)
    wanted = capacity_of(site, resource) * 9 // 10
    line = f"dios run long.py {option} {wanted} --constraint node=n1 --title pair"
    runs = [site.person.starts(line) for _ in range(2)]

    def running() -> int:
        return sum(row["state"] == "running" for row in site.tasks("pair"))

    def settled() -> bool:
        waits = [row["fingerprint"] for row in site.tasks("pair") if row["state"] == "waiting"]
        if running() == 2 or not waits:
            return running() == 2
        why = site.person.types(f"dios explain {waits[0]}").stdout
        return running() == 1 and "not enough free" in why and f"/s of {word} are needed" in why

    try:
        wait_until(settled, "one runs and the other one is explained", LOADED_S)
        # A busy machine is measured again, and may turn out to carry both.
        assert running() * wanted <= capacity_of(site, resource)
    finally:
        for run in runs:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)


def test_doctor_shows_the_source(site: Site) -> None:
    """`dios doctor` asks the running node for its capacities."""
    data = site.person.home / ".local/state/dios/cluster/n2"
    told = site.person.types(f"dios doctor --data {data} --json").stdout
    details = {row["name"]: row["detail"] for row in json.loads(told)["findings"]}
    for resource in ("disk", "network"):
        assert "/s, measured" in details[resource]
