"""``dios user``: the keys of users, and the mandates with which nodes act for them at other nodes."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Final

import msgspec

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.failures import Failures
from dios.cli.common.options import argument, option
from dios.cli.common.output import Cells, say, time_text
from dios.cli.common.principals import principal_of, principal_text
from dios.cli.common.results import CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.programs_of_users import output_of_user
from dios.cli.nodes.setting_options import seconds_of
from dios.client.sync.node import Node
from dios.client.user_keys import key_path, own_key, read_key, sign
from dios.errors import DiosError, InvalidError, NotPermittedError, ProtocolError
from dios.wire.mandates import EVERY_PURPOSE, Purpose, make_register, public_bytes, read_register
from dios.wire.types import Scope

_KEY_S_MAX: Final = 30

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Users with keys: a node acts at other nodes only for those enrolled users who signed that.",
)

NAME_ARGUMENT: Final[str] = argument("NAME", "A user: a name on this machine, or uid:1000.")


class UserKeyRow(Row):
    """A user's public key, as 64 hexadecimal digits, and the file with the key itself."""

    principal: str
    key: str
    path: str


class EnrolledRow(Row):
    """An enrolled user with one of the user's keys, and the key of the administrator who signed that.

    ``key`` is empty for a user without a key.
    """

    principal: str
    key: str
    administrator: str


class MandateRow(Row):
    """A mandate that you signed: the node, its purposes, and its end in nanoseconds since 1970."""

    node: str
    principal: str
    purposes: list[str]
    expires: int


class _Listed(msgspec.Struct):
    """The register as a command reads it, and the cluster that it is of."""

    cluster: bytes
    number: int = 0
    administrator: bytes = b""
    keys: Mapping[str, tuple[bytes, ...]] = {}

    def rows(self) -> list[EnrolledRow]:
        """Return a row for each key, and one for each user without a key."""
        return [
            EnrolledRow(principal, key.hex(), self.administrator.hex())
            for principal, keys in sorted(self.keys.items())
            for key in keys or (b"",)
        ]


@app.command(
    "key",
    examples="dios user key\ndios user key --json\ndios user key --administrator",
    json=UserKeyRow,
)
def show_key(
    *,
    administrator: bool = option("--administrator", "The administrator's key instead of yours."),
    output: OutputOptions,
) -> None:
    """Print your public key; the first time, make the key.

    The key stays in your configuration directory (mode 0600). Copy it to machines on which you use other
    nodes of the cluster, or enrol another key there. Send an administrator the two words that are printed.
    """
    path = key_path(administrator=administrator)
    key = public_bytes(own_key(path)).hex()
    row = UserKeyRow(f"uid:{os.getuid()}", key, str(path))
    if output.as_json:
        output.print_row(row)
        return
    print(f"{row.principal} {row.key}")  # noqa: T201 - the result, for a pipe
    if not administrator:
        say("an administrator enrols you with: dios user add " + f"{row.principal} {row.key}")


@app.command("ls", examples="dios user ls\ndios user ls --json", json=list[EnrolledRow])
def list_users(common: CommonOptions) -> None:
    """List the enrolled users, their keys, and the key of the administrator who signed that."""
    with opened(common.node, ()) as place:
        common.print_rows(
            _read(place.node).rows(),
            _cells,
            empty="no user is enrolled; next: dios user add NAME KEY, or dios user enrol-all",
        )


def _cells(row: EnrolledRow) -> Cells:
    return {
        "USER": principal_text(row.principal),
        "KEY": row.key or "none: locked",
        "ADMINISTRATOR": row.administrator[:16],
    }


@app.command(
    "add",
    examples="dios user add uid:1000 $(ssh n2 dios user key --json | jq -r .key)",
    json=list[EnrolledRow],
)
def add(
    name: str = NAME_ARGUMENT,
    key: str = argument("KEY", "The public key that `dios user key` prints for that user."),
    *,
    common: CommonOptions,
) -> None:
    """Enrol a user: from now on, nodes act at other nodes for that user with the user's signature alone.

    The first time, this makes the key of the cluster's administrator, who signs all later changes; keep a
    copy of that file in a safe place. All nodes store the list and pass it on.
    """
    principal = _principal(name)
    with opened(common.node, ()) as place:
        listed = _read(place.node)
        changed = _enrol(place.node, listed, {principal: _key(key)})
        common.print_rows(changed.rows(), _cells, [f"{principal_text(principal)} is enrolled"])


@app.command("rm", examples="dios user rm uid:1000 $KEY\ndios user rm uid:1000", json=list[EnrolledRow])
def remove(
    name: str = NAME_ARGUMENT,
    key: str = argument("[KEY]", "Only this key of the user; default: the user, with all keys."),
    *,
    common: CommonOptions,
) -> None:
    """Remove a key of a user, or the user.

    A user whose last key is removed stays enrolled and is locked: no node acts for the user at another one.
    A user who is removed is served as one who was never enrolled: nodes name the user without a mandate.
    """
    principal = _principal(name)
    with opened(common.node, ()) as place:
        listed = _read(place.node)
        keys = dict(listed.keys)
        own = keys.pop(principal, None)
        if own is None or (key and _key(key) not in own):
            suffix = " with this key" if key else ""
            raise InvalidError(f"{name} is not enrolled{suffix}. `dios user ls` lists the users and keys.")
        if key:
            keys[principal] = tuple(kept for kept in own if kept != _key(key))
        changed = _store(place.node, listed, keys)
        common.print_rows(
            changed.rows(), _cells, empty=f"{principal_text(principal)} is removed; no user is enrolled"
        )


@app.command("enrol-all", examples="sudo dios user enrol-all\ndios user enrol-all", json=list[EnrolledRow])
def enrol_all(common: CommonOptions) -> None:
    """Enrol all users of this machine who use its node; give the command on each machine of a cluster.

    As root, it makes a key for each of them, in the user's own configuration directory. Otherwise it enrols
    you. On further machines it needs the administrator's key: copy the file that `dios user key
    --administrator` names.
    """
    failures = Failures("not enrolled")
    with opened(common.node, ()) as place:
        listed = _read(place.node)
        users = {row.subject for row in place.node.limits() if row.scope is Scope.PRINCIPAL}
        own = f"uid:{os.getuid()}"
        fresh = {own: public_bytes(own_key(key_path()))}
        for principal in sorted(users - {own}):
            if os.getuid():
                failures.note(principal_text(principal), _not_yours(principal))
                continue
            try:
                key = _key_of(principal)
                _with_key(listed, principal, key)
            except (DiosError, OSError) as error:
                failures.note(principal_text(principal), str(error))
            else:
                fresh[principal] = key
        changed = _enrol(place.node, listed, fresh)
        common.print_rows(changed.rows(), _cells, failures=failures)


def _not_yours(principal: str) -> str:
    return f"only root makes keys of other users; run `dios user key` as {principal_text(principal)}"


def _key_of(principal: str) -> bytes:
    """Return the public key of another user of this machine, whose own process makes it.

    That process runs as the user, who can make it say anything. Raises DiosError or OSError.
    """
    if principal_of(principal) != principal:
        raise NotPermittedError("no user of this machine")
    uid = int(principal.removeprefix("uid:"))
    try:
        user = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        raise NotPermittedError(
            "no user of this machine has this number. Run `dios user key` where the user is known."
        ) from None
    answer = output_of_user(
        [sys.executable, "-I", "-m", "dios.cli.main", "user", "key", "--json"],
        user,
        {"HOME": user.pw_dir, "PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        seconds=_KEY_S_MAX,
        bytes_max=limits.USER_ANSWER_BYTES_MAX,
    )
    try:
        row = msgspec.json.decode(answer, type=UserKeyRow)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ProtocolError("the user's program printed no key. Let the user run `dios user key`.") from None
    if row.principal != principal:
        raise ProtocolError(f"the user's program printed a key of {row.principal[:80]!r}")
    return _key(row.key)


@app.command(
    "vouch",
    examples="dios user vouch n2 --for 7d\ndios user vouch n1 --purpose scheduling --for 30d",
    json=MandateRow,
)
def vouch(
    name: str = argument("[NODE]", "The node that may act for you; default: the asked one."),
    *,
    span: str = option("--for SPAN", "Until then: 1h, 2d; at most 31d.", default="12h"),
    purpose: list[str] = option(
        "--purpose WORD", "Only for this: objects, tasks, copies, scheduling or administration."
    ),
    common: CommonOptions,
) -> None:
    """Sign a mandate for a node: until its end, the node can act for you at other nodes.

    Programs do this for the node that they connect to, for 12 hours at a time. Give the command for work that
    lasts longer than your programs: queued and kept jobs, and a scheduler on another machine. A mandate
    cannot be taken back, except by `dios user rm` of your key.
    """
    purposes = reduce(or_, map(_purpose, purpose), Purpose.NONE) or EVERY_PURPOSE
    with opened(common.node, ()) as place:
        terms = place.node.mandate_terms(host=name).terms
        key = read_key(key_path())
        if terms is None or key is None or public_bytes(key) not in terms.keys:
            raise InvalidError(
                "you are not enrolled with a key that is on this machine. `dios user key` prints yours, and "
                "`dios user ls` lists those that are enrolled."
            )
        lasts_ms = seconds_of(span, "--for") * 1000
        place.node.vouch(sign(key, terms, purposes, lasts_ms), host=name)
        expires_ns = (terms.now_ms + lasts_ms) * 1_000_000
        words = [(member.name or "").lower() for member in purposes]
        common.print_row(
            MandateRow(name, terms.principal, words, expires_ns),
            f"{name or 'the node'} can act for you at other nodes until {time_text(expires_ns)}",
        )


# -- parts --------------------------------------------------------------------------------------------
def _purpose(word: str) -> Purpose:
    try:
        return Purpose[word.upper()]
    except KeyError:
        known = ", ".join((member.name or "").lower() for member in EVERY_PURPOSE)
        raise InvalidError(f"{word!r} is no purpose of a mandate; known: {known}") from None


def _principal(name: str) -> str:
    principal = principal_of(name)
    if not principal:
        raise InvalidError(f"this machine knows no user {name!r}. Name the user as uid:1000.")
    return principal


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidError(f"{text[:80]!r} is no key: `dios user key` prints one of 64 hexadecimal digits")
    return key


def _read(node: Node) -> _Listed:
    enrolled = node.read_register()
    if not enrolled.cluster:
        raise InvalidError(
            "this node is in no cluster, so that no other node acts for its users. `dios up` makes one."
        )
    if not enrolled.register:
        return _Listed(enrolled.cluster)
    register = read_register(enrolled.register)
    return _Listed(register.cluster, register.number, register.administrator, register.keys)


def _with_key(listed: _Listed, principal: str, key: bytes) -> tuple[bytes, ...]:
    """Return a user's keys with one more; raises InvalidError."""
    keys = tuple(dict.fromkeys((*listed.keys.get(principal, ()), key)))
    if len(keys) > limits.KEYS_PER_PRINCIPAL_MAX:
        raise InvalidError(
            f"{principal} has {limits.KEYS_PER_PRINCIPAL_MAX} keys, the maximum. `dios user rm {principal} "
            "KEY` removes one that is not in use."
        )
    return keys


def _enrol(node: Node, listed: _Listed, fresh: Mapping[str, bytes]) -> _Listed:
    """Add a key of each user to the register; one without a change is not stored again."""
    keys = {
        **listed.keys,
        **{principal: _with_key(listed, principal, key) for principal, key in fresh.items()},
    }
    return listed if keys == dict(listed.keys) else _store(node, listed, keys)


def _store(node: Node, listed: _Listed, keys: Mapping[str, tuple[bytes, ...]]) -> _Listed:
    """Sign and store a register; raises InvalidError for one that no node would read."""
    path = key_path(administrator=True)
    key = read_key(path) if listed.administrator else own_key(path)
    if key is None or (listed.administrator and public_bytes(key) != listed.administrator):
        raise NotPermittedError(
            "only the administrator of this cluster enrols users. Give the command where "
            f"{path} has the key {listed.administrator.hex()}."
        )
    if len(keys) > limits.ENROLLED_MAX:
        raise InvalidError(f"a cluster enrols at most {limits.ENROLLED_MAX} users. `dios user rm` some.")
    register = make_register(key, listed.cluster, listed.number + 1, keys)
    if len(register.data) > limits.REGISTER_BYTES_MAX:
        raise InvalidError(
            f"the list of users would have {len(register.data)} bytes, and at most "
            f"{limits.REGISTER_BYTES_MAX} are possible. `dios user rm` keys that are not in use."
        )
    node.enrol(register.data)
    if not listed.administrator:
        say(f"this made the key of the cluster's administrator: {path}; keep a copy in a safe place")
    return _Listed(listed.cluster, register.number, register.administrator, register.keys)
