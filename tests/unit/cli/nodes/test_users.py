"""Root enrols users whose programs answer whatever they like: each is refused alone."""

from __future__ import annotations

import json
import os
import pwd
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

import pytest

from dios import limits
from dios.cli.common.failures import Failures
from dios.cli.nodes import users
from dios.cli.nodes.programs_of_users import output_of_user
from dios.errors import DiosError, InvalidError, LimitError, NotPermittedError, TimeLimitError
from dios.wire.mandates import read_register
from dios.wire.types import Scope

KEY = "5a" * 32
HOSTILE = {
    "nothing": b"",
    "no JSON": b"{{{",
    "no text": b"\xff\xfe",
    "nested": b"[" * 4_000,
    "another type": b'{"principal": "uid:1", "key": 7, "path": ""}',
    "no hexadecimal": b'{"principal": "uid:1", "key": "zz", "path": ""}',
    "too short": b'{"principal": "uid:1", "key": "5a5a", "path": ""}',
    "too long": json.dumps({"principal": "uid:1", "key": KEY + "5a", "path": ""}).encode(),
    "for another user": json.dumps({"principal": "uid:0", "key": KEY, "path": ""}).encode(),
}


def answer(uid: int, key: str = KEY) -> bytes:
    """A true answer of a user's program."""
    return json.dumps({"principal": f"uid:{uid}", "key": key, "path": "user.key"}).encode()


# -- the program of a user --------------------------------------------------------------------------
@pytest.fixture(scope="module")
def nobody() -> pwd.struct_passwd:
    """A user that this process can become."""
    user = pwd.getpwnam("nobody")
    try:
        output_of_user(["/bin/true"], user, {}, seconds=20, bytes_max=1)
    except OSError as error:
        pytest.skip(f"needs root: {error}")
    return user


def printed(user: pwd.struct_passwd, program: str, *, seconds: float = 60, bytes_max: int = 4096) -> bytes:
    """The output of a program in Python that the user runs."""
    command = ["/usr/bin/env", "python3", "-I", "-c", textwrap.dedent(program)]
    return output_of_user(command, user, {"PATH": os.defpath}, seconds=seconds, bytes_max=bytes_max)


def test_a_program_of_a_user_has_neither_input_nor_terminal(nobody: pwd.struct_passwd) -> None:
    """It is nobody else, leads its own session, and has no file of the caller."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        output = printed(
            nobody,
            """
            import json, os, sys
            try:
                os.open("/dev/tty", os.O_RDWR)
                terminal = True
            except OSError:
                terminal = False
            fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
            print(json.dumps([
                sys.stdin.read(), terminal, os.getsid(0) == os.getpid(), os.getresuid(), os.getgroups(),
                [fd for fd in fds if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")], os.getcwd(),
            ]))
            """,
        )
    finally:
        os.close(read)
        os.close(write)
    assert json.loads(output) == ["", False, True, [nobody.pw_uid] * 3, [], [], "/"]


@pytest.mark.parametrize("stream", [1, 2])
def test_endless_output_is_refused(nobody: pwd.struct_passwd, stream: int) -> None:
    """No more than the bound is in memory, and the program is ended."""
    with pytest.raises(LimitError, match="more than 4096 bytes"):
        printed(nobody, f"import os\nwhile True: os.write({stream}, b'x' * 65536)")
    assert printed(nobody, "print('x' * 4095)") == b"x" * 4095 + b"\n"


@pytest.mark.parametrize("closes", [False, True])
def test_nothing_waits_for_a_silent_program(nobody: pwd.struct_passwd, *, closes: bool) -> None:
    """Neither for one that prints nothing, nor for one that ends its output and lives on."""
    program = "import os, time\n" + ("os.close(1); os.close(2)\n" if closes else "") + "time.sleep(1000)"
    with pytest.raises(TimeLimitError):
        printed(nobody, program, seconds=1)


def test_a_grandchild_that_keeps_the_pipe_is_not_waited_for(nobody: pwd.struct_passwd) -> None:
    """A process that the user leaves behind holds nobody up for longer than the bound."""
    with pytest.raises(TimeLimitError):
        printed(nobody, "import os, time\nif not os.fork(): time.sleep(1000)", seconds=1)


def test_a_failing_program_is_a_refusal(nobody: pwd.struct_passwd) -> None:
    """With the last line of what it says."""
    with pytest.raises(NotPermittedError, match="cannot be made: the disk is full"):
        printed(nobody, "import sys\nsys.exit('x\\nthe disk is full')")


# -- all users --------------------------------------------------------------------------------------
class FakeNode:
    """A node with users, and the register that it has."""

    def __init__(self, uids: list[int]) -> None:
        self.subjects = [f"uid:{uid}" for uid in uids]
        self.register = b""

    def __enter__(self) -> SimpleNamespace:
        """The place of a command."""
        return SimpleNamespace(node=self)

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def limits(self) -> list[SimpleNamespace]:
        """A row for each user, and one for those that have none."""
        return [SimpleNamespace(scope=Scope.PRINCIPAL, subject=subject) for subject in self.subjects]

    def read_register(self) -> SimpleNamespace:
        """The register, as a node gives it."""
        return SimpleNamespace(cluster=bytes(32), register=self.register)

    def enrol(self, register: bytes) -> None:
        """Store a register as a node does: one that it cannot read is an error."""
        read_register(register)
        self.register = register


EnrolAll: TypeAlias = Callable[[FakeNode, Mapping[int, bytes | DiosError]], Mapping[str, str]]


@pytest.fixture
def enrol_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EnrolAll:
    """Root's command at a node, with the answers of the users' programs; returns the failures."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 0)

    def user_of(uid: int) -> SimpleNamespace:
        if not 0 <= uid < 10:
            raise KeyError(uid)
        return SimpleNamespace(pw_dir="/", pw_uid=uid, pw_gid=1, pw_name=f"u{uid}")

    monkeypatch.setattr(pwd, "getpwuid", user_of)
    printed_rows: list[Mapping[str, str]] = []

    def print_rows(*_: object, failures: Failures) -> None:
        printed_rows.append(failures.reasons)

    def run(node: FakeNode, answers: Mapping[int, bytes | DiosError]) -> Mapping[str, str]:
        def output(_: object, user: SimpleNamespace, *__: object, **___: object) -> bytes:
            said = answers[user.pw_uid]
            if isinstance(said, DiosError):
                raise said
            return said

        monkeypatch.setattr(users, "output_of_user", output)
        monkeypatch.setattr(users, "opened", lambda *_: node)
        users.enrol_all(SimpleNamespace(node="", print_rows=print_rows))  # type: ignore[arg-type]
        return printed_rows[-1]

    return run


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_bad_answer_is_one_users_failure(enrol_all: EnrolAll, kind: str) -> None:
    """The others are enrolled, and the register is one that nodes read."""
    node = FakeNode([0, 1, 2, 3])
    failures = enrol_all(node, {1: HOSTILE[kind], 2: answer(2), 3: LimitError("too much")})
    assert set(failures) == {"uid:1 (u1)", "uid:3 (u3)"}
    register = read_register(node.register)
    assert set(register.keys) == {"uid:0", "uid:2"}
    assert register.keys["uid:2"] == (bytes.fromhex(KEY),)


def test_a_principal_that_is_no_user_is_one_failure(enrol_all: EnrolAll) -> None:
    """A row of a node that names no user of a machine stops nobody."""
    node = FakeNode([0, 2])
    node.subjects += ["other", "uid:", "uid:x", "uid:99999999999", "uid:-1"]
    assert set(enrol_all(node, {2: answer(2)})) == {"other", "uid:", "uid:x", "uid:99999999999", "uid:-1"}
    assert set(read_register(node.register).keys) == {"uid:0", "uid:2"}


def test_a_user_with_one_key_too_many_is_one_failure(enrol_all: EnrolAll) -> None:
    """A user's program that makes a new key each time fills the places of that user alone."""
    node = FakeNode([0, 1, 2])
    for number in range(limits.KEYS_PER_PRINCIPAL_MAX):
        assert not enrol_all(node, {1: answer(1, f"{number:064x}"), 2: answer(2)})
    before = node.register
    failures = enrol_all(node, {1: answer(1, "ff" * 32), 2: answer(2)})
    assert "16 keys, the maximum" in failures["uid:1 (u1)"]
    assert node.register == before
    failures = enrol_all(node, {1: answer(1, "ff" * 32), 2: answer(2, "ee" * 32)})
    assert set(failures) == {"uid:1 (u1)"}
    assert len(read_register(node.register).keys["uid:2"]) == 2


def test_a_register_that_no_node_reads_is_not_stored(
    enrol_all: EnrolAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many users, or too many bytes: an error, and the register stays."""
    monkeypatch.setattr(limits, "ENROLLED_MAX", 2)
    node = FakeNode([0, 1, 2])
    with pytest.raises(InvalidError, match="at most 2 users"):
        enrol_all(node, {1: answer(1), 2: answer(2)})
    monkeypatch.setattr(limits, "ENROLLED_MAX", 10)
    monkeypatch.setattr(limits, "REGISTER_BYTES_MAX", 100)
    with pytest.raises(InvalidError, match="at most 100 are possible"):
        enrol_all(node, {1: answer(1), 2: answer(2)})
    assert not node.register


# -- removal -----------------------------------------------------------------------------------------
def test_a_user_without_the_last_key_is_locked(enrol_all: EnrolAll) -> None:
    """Only the removal of the user, not that of a key, opens what the key protected."""
    node = FakeNode([0, 1])
    enrol_all(node, {1: answer(1, KEY)})
    rows: list[users.EnrolledRow] = []
    common = SimpleNamespace(node="", print_rows=lambda listed, *_, **__: rows.extend(listed))
    users.remove("uid:1", KEY, common=common)  # type: ignore[arg-type]
    assert read_register(node.register).keys["uid:1"] == ()
    assert [row.key for row in rows if row.principal == "uid:1"] == [""]
    for key in (KEY, "00" * 32):
        with pytest.raises(InvalidError, match="not enrolled with this key"):
            users.remove("uid:1", key, common=common)  # type: ignore[arg-type]
    users.remove("uid:1", "", common=common)  # type: ignore[arg-type]
    assert set(read_register(node.register).keys) == {"uid:0"}
    with pytest.raises(InvalidError, match="is not enrolled"):
        users.remove("uid:1", "", common=common)  # type: ignore[arg-type]
