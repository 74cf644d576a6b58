"""A cluster on hosts that are reached by ssh: the steps of ``dios up --hosts`` and ``dios down --hosts``.

The hosts themselves are the only record of what was done: each step looks first, so that a second run
continues where the first one ended. ``ssh`` asks one host, and ``on_host`` works there.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from dios.errors import DiosError, ExistsError, InvalidError
from dios.installation import DISTRIBUTION, source
from dios.node import cluster
from dios.node.addresses import checked_address, checked_label
from dios.node.bringup import release, wheel
from dios.node.bringup.answers import Looked, Message, Ready, Stopped, Token
from dios.node.bringup.dependencies import OWN_LOCK, Platform, gather, read_lock, requirements
from dios.node.bringup.ssh import HostError, Ssh, Upload
from dios.node.bringup.wheel import Wheel
from dios.node.settings import KEYS, load
from dios.wire.addresses import join_address
from dios.wire.node_roles import NodeRole

HOSTS_MAX: Final = 64
AT_ONCE_MAX: Final = 16
PORT_DEFAULT: Final = 7_400
EXTRAS_DEFAULT: Final = "cluster"
_TOKEN_VALID: Final = "15min"  # noqa: S105 - a span, no secret
_OWN_KEYS: Final = frozenset({*cluster.REMEMBERED, "socket", "log_file", "record"})
_TARGET: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%+\[\]-]*")
_EXTRAS: Final = re.compile(r"[a-z0-9-]+(,[a-z0-9-]+)*|")

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Host:
    """A host: its node's name, the destination for ssh, and its rack."""

    name: str
    target: str
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes for all hosts; ``settings`` are of every node, as text."""

    hosts: tuple[Host, ...]
    prefix: str = ""
    port: int = PORT_DEFAULT
    network: str = ""
    extras: str = EXTRAS_DEFAULT
    wheelhouse: Path | None = None
    lock: Path | None = OWN_LOCK
    release: release.Place | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A node of the cluster that was brought up."""

    name: str
    host: str
    rack: str
    address: str
    version: str
    by: str
    prefix: str
    state: str
    restart: bool
    """The running node is of another version than the installed one."""


# -- the wishes ---------------------------------------------------------------------------------------
def parse(text: str, *, racks: int = 0) -> tuple[Host, ...]:
    """Read a list of hosts, ``[NAME=]HOST[/RACK],…``. Raise InvalidError.

    The name is by default the host's first label, without the user. ``racks`` spreads the hosts that name no
    rack over racks r1, r2 and so on.
    """
    hosts: list[Host] = []
    for number, word in enumerate(part.strip() for part in text.split(",") if part.strip()):
        name, equals, rest = word.rpartition("=")
        target, _, rack = rest.partition("/")
        if not _TARGET.fullmatch(target):
            raise InvalidError(f"{word!r} is not a host: give [NAME=]HOST[/RACK], with HOST as for ssh")
        name = name if equals else _default_name(target)
        rack = rack or (f"r{number % racks + 1}" if racks else "")
        for value, attribute in ((name, "name of a node"), (rack or "r", "rack")):
            try:
                checked_label(value)
            except ValueError as error:
                raise InvalidError(
                    f"{value!r} in {word!r} cannot be the {attribute}: it must be {error}"
                ) from None
        hosts.append(Host(name, target, rack))
    if not 1 <= len(hosts) <= HOSTS_MAX:
        raise InvalidError(f"--hosts needs 1 to {HOSTS_MAX} hosts, not {len(hosts)}")
    for attribute in ("name", "target"):
        values = [getattr(host, attribute) for host in hosts]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise InvalidError(f"{', '.join(twice)} is given twice. Name the nodes with NAME=HOST.")
    return tuple(hosts)


def _default_name(target: str) -> str:
    host = target.rpartition("@")[2]
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.partition(".")[0]


def network_address(text: str) -> str:
    """Return an address in a network, ``10.1.0.0/16`` or an address. Raise InvalidError."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise InvalidError(f"--network must be a network like 10.1.0.0/16: {error}") from None
    return str(network.network_address + (1 if network.num_addresses > 1 else 0))


def _settings_text(wanted: Wanted, name: str, rack: str, address: str) -> str:
    """Return the ``node.toml`` of a new node. Raise InvalidError or SettingsError for a wrong setting."""
    for key in wanted.settings:
        if key in _OWN_KEYS and key in KEYS:
            raise InvalidError(f"{key} is chosen separately for each host. Leave it out.")
    chosen = {**wanted.settings, "name": name, "rack": rack, "listen": address}
    load(Path("/nonexistent"), flags={key: value or None for key, value in chosen.items()}, environ={})
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in chosen.items() if value)


# -- up -----------------------------------------------------------------------------------------------
class Fleet:
    """The hosts of one command: asks all of them at once, and knows how far each has come."""

    def __init__(
        self, wanted: Wanted, *, ssh: Ssh | None = None, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self._wanted: Final = wanted
        self._ssh: Final = ssh or Ssh()
        self._report: Final = report
        self.stages: Final = {host.name: "not reached" for host in wanted.hosts}

    def bring_up(self) -> list[Row]:
        """Install, start and join all hosts, and return when every node sees all others.

        Raise HostError if a step failed on a host; the other hosts have completed this step. ExistsError if
        the hosts have nodes of different clusters. ``stages`` has the last stage of each host.
        """
        hosts = self._wanted.hosts
        looked = dict(zip(hosts, self._each(self._look, hosts), strict=True))
        self._refuse_unfit(looked)
        changed = self._install(looked)
        members = [host for host in hosts if looked[host].member.cluster]
        fresh = [host for host in hosts if host not in members]
        rows: dict[Host, Row] = {}
        second: Host | None = None
        if not members:
            members, fresh = fresh[:1], fresh[1:]
            elsewhere = [host for host in fresh if host.rack != members[0].rack]
            second = next(iter(elsewhere or fresh), None)
        rows |= zip(
            members, self._each(lambda host: self._start(host, looked[host], None), members), strict=True
        )
        if second is not None:
            # The first authority may be lost, with its rack.
            rows[second] = self._start(
                second, looked[second], self._token(members, 1, role=NodeRole.AUTHORITY)
            )
            fresh.remove(second)
        if fresh:
            token = self._token(members, len(fresh), role=NodeRole.MEMBER)
            joined = self._each(lambda host: self._start(host, looked[host], token), fresh)
            rows |= zip(fresh, joined, strict=True)
        names = [rows[host].name for host in hosts]
        ready = self._each(lambda host: self._wait(host, names), hosts)
        return [
            replace(rows[host], version=answer.version, restart=changed[host] and looked[host].running)
            for host, answer in zip(hosts, ready, strict=True)
        ]

    def _token(self, members: Sequence[Host], uses: int, *, role: NodeRole) -> Token:
        """Return an invitation of the first member that is an authority. Raise HostError if none is."""
        request = {"do": "token", "uses": uses, "valid": _TOKEN_VALID, "role": str(role)}
        failure: HostError | None = None
        for member in members:
            try:
                token = self._ask(member, request, lambda said: said.token)
            except HostError as error:
                failure = failure or error
                continue
            checked_address(token.address, advertised=True)
            return token
        raise failure or HostError("none of the hosts has a node that invites others")

    def _look(self, host: Host) -> Looked:
        answer = self._ask(host, {"do": "look", "network": self._wanted.network}, lambda said: said.look)
        self.stages[host.name] = "reached; " + ("its node runs" if answer.running else "nothing was changed")
        return answer

    def _refuse_unfit(self, looked: Mapping[Host, Looked]) -> None:
        clusters = {answer.member.cluster: host for host, answer in looked.items() if answer.member.cluster}
        if len(clusters) > 1:
            first, other = list(clusters.values())[:2]
            raise ExistsError(
                f"{first.target} and {other.target} have nodes of different clusters. Leave one out, or "
                "delete its node and its data with `dios down --hosts HOST --delete`."
            )
        for host, answer in looked.items():
            if not answer.venv:
                raise HostError(
                    f"{host.target} cannot make virtual environments: Python's venv or ensurepip is missing "
                    "there. On Debian and Ubuntu: apt install python3-venv."
                )
            if not answer.member.address and not answer.address:
                raise HostError(
                    f"{host.target} did not say at which address it was reached (SSH_CONNECTION is not set "
                    "there). Name the network of the nodes with --network."
                )
            _settings_text(self._wanted, self._name(host, answer), host.rack, self._address(answer))
        places = [(self._address(answer), answer.prefix) for answer in looked.values()]
        if len(set(places)) < len(places):
            raise InvalidError("two of the hosts are the same machine. Give each machine once.")

    def _name(self, host: Host, looked: Looked) -> str:
        return looked.member.name or host.name

    def _address(self, looked: Looked) -> str:
        if looked.member.address:
            return checked_address(looked.member.address)
        try:
            return join_address(str(ipaddress.ip_address(looked.address)), self._wanted.port)
        except ValueError:
            raise HostError(f"a host named {looked.address!r} as its address, which is none") from None

    def _install(self, looked: Mapping[Host, Looked]) -> dict[Host, bool]:
        """Install the running version where it is missing; return for each host if that changed it."""
        own, extras = self._own_wheel(), self._wanted.extras
        given = {own.name: _digest(own.data), **_digests_of(self._wanted.wheelhouse)}
        lock = None
        if self._wanted.lock is not None:
            lock = read_lock(self._wanted.lock)
            given["lock"] = _digest(self._wanted.lock.read_bytes())
        names = {
            host: environment_name(given, extras=extras, python=answer.python)
            for host, answer in looked.items()
        }
        fresh = {host: answer for host, answer in looked.items() if answer.environment != names[host]}
        gathered: dict[Platform, list[Upload]] = {}
        for answer in fresh.values():
            if (platform := _platform(answer)) not in gathered:
                gathered[platform] = gather(
                    own,
                    platform,
                    extras=extras,
                    folder=self._wanted.wheelhouse,
                    lock=lock,
                    report=self._report,
                )

        def work(host: Host) -> bool:
            answer = looked[host]
            if host not in fresh:
                self.stages[host.name] = _installed_stage(answer)
                return False
            wheels = gathered[_platform(answer)]
            request = {
                "do": "install",
                "environment": names[host],
                "requirements": requirements(own, wheels, extras=extras),
            }
            missing = [
                upload
                for upload in (Upload(own.name, own.data), *wheels)
                if answer.files.get(upload.name) != _digest(upload.data)
            ]
            reply = self._ask(host, request, lambda said: said.install, uploads=missing)
            self.stages[host.name] = _installed_stage(answer)
            return reply.changed

        return dict(zip(looked, self._each(work, tuple(looked)), strict=True))

    def _own_wheel(self) -> Wheel:
        if self._wanted.release is not None:
            self._report("checking the signature of the release")
            return self._wanted.release.wheel()
        self._report("making the wheel of the version that runs here, which has no signature")
        return wheel.of_running_version()

    def _start(self, host: Host, looked: Looked, token: Token | None) -> Row:
        name, address = self._name(host, looked), self._address(looked)
        request: dict[str, object] = {
            "do": "start",
            "settings": _settings_text(self._wanted, name, host.rack, address),
        }
        if token is not None:
            request |= {"join": token.address, "token": token.token}
        answer = self._ask(host, request, lambda said: said.start)
        self.stages[host.name] = "its node runs"
        state = "was running" if not answer.started else "started" if looked.member.cluster else "made"
        return Row(name, host.target, host.rack, address, "", answer.by, looked.prefix, state, restart=False)

    def _wait(self, host: Host, names: Sequence[str]) -> Ready:
        answer = self._ask(host, {"do": "wait", "names": list(names)}, lambda said: said.wait)
        self.stages[host.name] = "its node runs and sees all others"
        return answer

    # -- down -----------------------------------------------------------------------------------------
    def take_down(self, *, delete: bool) -> list[Stopped]:
        """Stop all nodes; with ``delete`` remove all that ``dios up`` made there. Raise HostError."""

        def work(host: Host) -> Stopped:
            answer = self._ask(host, {"do": "stop", "delete": delete}, lambda said: said.stop)
            self.stages[host.name] = "stopped and deleted" if answer.deleted else "stopped"
            return answer

        return self._each(work, self._wanted.hosts)

    # -- all hosts ------------------------------------------------------------------------------------
    def _ask(
        self,
        host: Host,
        request: Mapping[str, object],
        choose: Callable[[Message], T | None],
        *,
        uploads: Sequence[Upload] = (),
    ) -> T:
        answer = choose(
            self._ssh.ask(
                host.target,
                {**request, "prefix": self._wanted.prefix},
                uploads=uploads,
                report=lambda text: self._report(f"{host.name}: {text}"),
            )
        )
        if answer is None:
            raise HostError(f"{host.target} answered another request than {request['do']}")
        return answer

    def _each(self, work: Callable[[Host], R], hosts: Sequence[Host]) -> list[R]:
        """Call a function for all hosts at once. Raise one error for all hosts on which it failed.

        An interruption ends the conversations first, so that no host is worked on when this returns.
        """
        failed: list[DiosError] = []
        lock = threading.Lock()

        def guarded(host: Host) -> list[R]:
            try:
                return [work(host)]
            except DiosError as error:
                with lock:
                    failed.append(error)
                return []

        with ThreadPoolExecutor(max_workers=min(len(hosts), AT_ONCE_MAX)) as pool:
            futures = [pool.submit(guarded, host) for host in hosts]
            try:
                done = [result for future in futures for result in future.result()]
            except BaseException:
                self._ssh.cancel()
                raise
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise HostError("\n".join(error.message for error in failed))
        return done


def _installed_stage(looked: Looked) -> str:
    return "installed; " + ("its node runs" if looked.running else "not started")


def _platform(looked: Looked) -> Platform:
    return Platform(".".join(looked.python.split(".")[:2]), looked.machine, looked.glibc)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def environment_name(digests: Mapping[str, str], *, extras: str, python: str) -> str:
    """Return the name of an environment: the same for the same files, extras and version of Python.

    The files are those that the user chose: this package, a wheelhouse and a lock. A newer release of a
    dependency on the index changes no environment.
    """
    text = "\n".join([".".join(python.split(".")[:2]), extras, *sorted(digests.values())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digests_of(folder: Path | None) -> dict[str, str]:
    """Return the digests of the wheels of a folder by their names. Raise InvalidError if it has none."""
    if folder is None:
        return {}
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        wanted = shlex.join(source(EXTRAS_DEFAULT) or [f"{DISTRIBUTION}[{EXTRAS_DEFAULT}]"])
        raise InvalidError(
            f"{folder} has no wheels. Fill it with `pip wheel --wheel-dir {folder} {wanted}` on a machine "
            "with a network, and with the hosts' Python and kind of processor."
        )
    return {path.name: _digest(path.read_bytes()) for path in wheels}


def lock_of(text: str | None, wheelhouse: Path | None) -> Path | None:
    """Return the lock to use, or None for ``none``. Without ``text``, only a wheelhouse has none."""
    if text is None:
        return OWN_LOCK if wheelhouse is None else None
    return None if text == "none" else Path(text)


def check_extras(text: str) -> str:
    """Return the extras to install, without spaces; ``none`` means none. Raise InvalidError."""
    extras = "" if text == "none" else text.replace(" ", "")
    if not _EXTRAS.fullmatch(extras):
        raise InvalidError(f"--extras must be names like cluster,wasm, or none; not {text!r}")
    return extras
