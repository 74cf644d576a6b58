"""A machine whose kernel does the work of a network function: nftables, and TAYGA between versions of IP.

Two virtual cables lead to it, with a packet socket at each far end. Frames have no VLAN tags, because not
every kernel has them. For: comparisons of the functions of ``dios.sprayer`` with Linux.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Literal

from dios.sprayer import INSIDE, OUTSIDE
from dios.sprayer.functions.firewall import Rule
from tests.support.lab.namespaces import MachineNamespaces, NotHereError, killed_with_parent, run
from tests.support.sprayer.frames import TCP, UDP, Made

Kind = Literal["nat", "firewall", "nat64", "siit"]

OWN4: Final = "198.51.100.1"
OWN6: Final = "2001:db8:5::1"
PREFIX: Final = "2001:db8:d246::"
"""Of 96 bits, whose words add up to 0 in ones' complement."""
CLIENTS: Final = 8
"""The number of hosts inside, 5 to 12 in each of their networks."""
PATIENCE_S: Final = 20.0
_ALL: Final = 3
_MTU: Final = 65_535
_BUFFER: Final = 2**26
_NAMES: Final = ("in", "out")
_HARDWARE: Final = ("02:d1:05:03:00:01", "02:d1:05:03:00:02")
_ROUTER: Final = bytes.fromhex("02d105040000")
"""The hardware address of all interfaces of the router."""
_TIMEOUTS: Final = (
    *(f"{name}_timeout" for name in ("generic", "icmp", "icmpv6", "udp", "gre", "udplite")),
    *(f"{name}_timeout_stream" for name in ("udp", "gre", "udplite")),
    *(f"tcp_timeout_{name}" for name in ("syn_sent", "syn_recv", "fin_wait", "close_wait", "last_ack")),
    *(f"tcp_timeout_{name}" for name in ("time_wait", "close")),
)
_LONG_S: Final = 7200
_SILENCE: Final = "table inet s { chain o { type filter hook output priority 0; policy drop; }; };\n"
"""Nothing that the machine itself sends is seen."""
_CHAIN: Final = """
table inet f {
  chain forward {
    type filter hook forward priority 0
    ct state established,related accept
    ct state invalid drop
    RULES
    drop
  }
}
"""
_FIREWALL: Final = """
    iifname "in0" udp dport 7 drop
    iifname "in0" accept
    iifname "out0" tcp dport 80 ip daddr 10.0.0.5 accept
"""
"""The rules of ``RULES``."""
RULES: Final = (
    Rule(allow=False, protocol=UDP, ports=(7, 7)),
    Rule(),
    Rule(side=OUTSIDE, protocol=TCP, ports=(80, 80), target="10.0.0.5"),
)
"""Rules for the firewall, which the router has, too."""
_TRANSLATION: Final = f"""
table ip n {{ chain p {{ type nat hook postrouting priority 100; oifname "out0" snat to {OWN4}; }}; }};
table ip6 n {{ chain p {{ type nat hook postrouting priority 100; oifname "out0" snat to {OWN6}; }}; }};
"""
_TAYGA: Final = """
tun-device nat64
ipv4-addr 192.0.2.254
prefix {prefix}/96
data-dir {folder}
{maps}
"""


class LinuxRouter:
    """The kernel as a network function of some kind; ``close`` removes it.

    Raises ``NotHereError`` or ``OSError`` where this machine has no namespaces, no nftables or no TAYGA.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind: Final = kind
        self.marks = self.marked = 0
        """The number of marks, and the port outside of their session."""
        self._stack = contextlib.ExitStack()
        self._sockets: list[socket.socket] = []
        self._between_versions: Final = kind in {"nat64", "siit"}
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the machine."""
        self._stack.close()

    def _build(self) -> None:
        if not shutil.which("nft"):
            raise NotHereError("nft is not installed (on Debian or Ubuntu: apt install nftables)")
        self.middle = self._stack.enter_context(contextlib.closing(MachineNamespaces("middle")))
        self._settings("net/ipv4", ip_forward=1)
        self._settings("net/ipv6/conf/all", forwarding=1, accept_dad=0)
        self._settings("net/ipv4/conf/all", rp_filter=0, send_redirects=0)
        self._settings("net/ipv4/conf/default", rp_filter=0, send_redirects=0)
        for side in (INSIDE, OUTSIDE):
            self._cable(side)
        self._routes()
        if self._between_versions:
            self._tayga()
        run(self.middle.inside("nft", "-f", "-"), typed=_SILENCE)
        if self.kind == "firewall":
            run(self.middle.inside("nft", "-f", "-"), typed=_CHAIN.replace("RULES", _FIREWALL))
        elif self.kind != "siit":
            run(
                self.middle.inside("nft", "-f", "-"),
                typed=_CHAIN.replace("RULES", 'iifname != "out0" accept') + _TRANSLATION,
            )
        if self.kind != "siit":
            # The functions pass what is in a session, in any order, and open none in the middle.
            self._settings("net/netfilter", nf_conntrack_tcp_loose=0, nf_conntrack_tcp_be_liberal=1)
            for name in _TIMEOUTS:
                with contextlib.suppress(NotHereError):  # not every kernel follows every protocol
                    self._settings("net/netfilter", **{f"nf_conntrack_{name}": _LONG_S})
        # TAYGA takes a moment to attach itself.
        for _ in range(int(PATIENCE_S)):
            if self._forwarded([], INSIDE, 1.0) is not None:
                return
        raise NotHereError("the kernel forwards nothing between the virtual cables")

    def _settings(self, folder: str, **values: int) -> None:
        text = "".join(
            f"echo {value} > /proc/sys/{folder}/{name} || exit 1\n" for name, value in values.items()
        )
        run(self.middle.inside("sh", "-c", text))

    def _cable(self, side: int) -> None:
        name = _NAMES[side]
        space = self._stack.enter_context(contextlib.closing(MachineNamespaces(name)))
        own = (
            f"link add {name}0 address {_ROUTER.hex(':')} mtu {_MTU} type veth peer name e0 netns {space.pid}"
        )
        self.middle.batch([own, f"link set {name}0 addrgenmode none", f"link set {name}0 up"])
        space.batch(["link set e0 addrgenmode none", f"link set e0 address {_HARDWARE[side]} mtu {_MTU}"])
        space.batch(["link set e0 arp off up"])
        with space.entered():
            end = self._stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            end.setsockopt(socket.SOL_SOCKET, 33, _BUFFER)  # SO_RCVBUFFORCE
            end.bind(("e0", _ALL))
        self._sockets.append(end)

    def _routes(self) -> None:
        gateways = ("198.51.100.254", "2001:db8:5::fe")
        own = ("198.51.100.2", "2001:db8:5::2") if self.kind == "siit" else (OWN4, OWN6)
        hosts = [
            f"{network}{client}"
            for network in ("10.0.0.", "fd00::", "2001:db8:c::")
            for client in range(5, 5 + CLIENTS)
        ]
        self.middle.batch(
            [
                "address add 10.0.0.254/24 dev in0",
                "address add fd00::fe/64 dev in0 nodad",
                "address add 2001:db8:c::fe/64 dev in0 nodad",
                f"address add {own[0]}/24 dev out0",
                f"address add {own[1]}/64 dev out0 nodad",
                *(
                    f"neigh add {gateway} lladdr {_HARDWARE[OUTSIDE]} dev out0 nud permanent"
                    for gateway in gateways
                ),
                *(f"neigh add {host} lladdr {_HARDWARE[INSIDE]} dev in0 nud permanent" for host in hosts),
                f"route add default via {gateways[0]} dev out0",
                f"route add default via {gateways[1]} dev out0",
            ]
        )

    def _tayga(self) -> None:
        if not shutil.which("tayga"):
            raise NotHereError("tayga is not installed (on Debian or Ubuntu: apt install tayga)")
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dios-tayga-")))
        maps = ""
        if self.kind == "nat64":
            maps = "\n".join(f"map 192.0.2.{client} 2001:db8:c::{client}" for client in range(5, 5 + CLIENTS))
        (folder / "conf").write_text(_TAYGA.format(prefix=PREFIX, folder=folder, maps=maps))
        command = ["tayga", "--config", str(folder / "conf")]
        run(self.middle.inside(*command, "--mktun"))
        self.middle.batch(
            [
                f"link set nat64 mtu {_MTU} txqueuelen 20000 addrgenmode none up",
                "address add 192.0.2.253/32 dev nat64",
                "address add 2001:db8:7::1/64 dev nat64 nodad",
                f"route add {PREFIX}/96 dev nat64",
                "route add 192.0.2.0/24 dev nat64",
                # What TAYGA sends to hosts inside has their addresses in the prefix.
                f"route add {PREFIX}192.0.2.0/120 via 2001:db8:c::5 dev in0 table 60",
            ]
        )
        run(self.middle.inside("ip", "-6", "rule", "add", "iif", "nat64", "lookup", "60", "priority", "60"))
        log = (folder / "log").open("wb")
        self._stack.enter_context(log)
        process = subprocess.Popen(
            killed_with_parent(self.middle.inside(*command, "--nodetach")), stdout=log, stderr=log
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)

    def forwarded(self, frames: list[bytes], side: int) -> list[bytes]:
        """Return the frames that leave at the other side."""
        results = self._forwarded(frames, side, PATIENCE_S)
        if results is None:
            raise AssertionError("the kernel does not forward the packet behind the others")
        return results

    def _forwarded(self, frames: list[bytes], side: int, patience_s: float) -> list[bytes] | None:
        mark = self._mark(side)
        for frame in [*frames, mark.frame()]:
            self._sockets[side].send(_ROUTER + frame[6:])
        other = self._sockets[1 - side]
        results: list[bytes] = []
        while select.select([other], [], [], patience_s)[0]:
            data = other.recv(2 * _MTU)
            if mark.payload in data:
                if side == INSIDE:
                    at = 14 + (40 if data[14] >> 4 == 6 else 20)
                    self.marked = int.from_bytes(data[at : at + 2])
                self._drain(side)
                return results
            if data[:2] != b"\x33\x33":  # reports of the machine itself to groups
                results.append(data)
        return None

    def _drain(self, side: int) -> None:
        """Forget what the kernel itself has answered to the sender."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._sockets[side].recv(65_536 * 2, socket.MSG_DONTWAIT)

    def _mark(self, side: int) -> Made:
        """Return a packet of an open session: what came before it was forwarded by then, or never is."""
        self.marks += 1
        payload = f"mark {self.marks}.".encode()
        inside, outside = {
            "nat": (("10.0.0.12", "203.0.113.254"), (OWN4, "203.0.113.254")),
            "firewall": (("10.0.0.12", "203.0.113.254"), ("10.0.0.12", "203.0.113.254")),
            "nat64": (("2001:db8:c::12", f"{PREFIX}203.0.113.254"), (OWN4, "203.0.113.254")),
            "siit": ((f"{PREFIX}192.0.2.12", f"{PREFIX}203.0.113.254"), ("192.0.2.12", "203.0.113.254")),
        }[self.kind]
        if side == INSIDE:
            return Made(*inside, 9, 9, UDP, payload=payload)
        client, server = outside
        return Made(server, client, 9, self.marked, UDP, payload=payload)
