"""The answers of hosts to requests of ``dios up --hosts``, with a bound for everything in them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(max_length=4_096)]


class Member(msgspec.Struct):
    """The node that a host's data directory has, if any."""

    name: Annotated[str, Meta(max_length=63)] = ""
    address: Text = ""
    cluster: Annotated[str, Meta(max_length=64)] = ""


class Looked(msgspec.Struct):
    """The state of a host."""

    python: Annotated[str, Meta(max_length=64, pattern=r"^3\.[0-9]+\.")]
    machine: Annotated[str, Meta(max_length=64, pattern=r"^[a-z0-9_]+$")]
    glibc: Annotated[str, Meta(max_length=16, pattern=r"^(2\.[0-9]{1,3}(\.[0-9]+)?)?$")]
    venv: bool
    user: Text
    address: Annotated[str, Meta(max_length=64)]
    prefix: Text
    units: Annotated[str, Meta(max_length=16)]
    environment: Annotated[str, Meta(max_length=64)]
    version: Annotated[str, Meta(max_length=64)]
    running: bool
    member: Member
    files: Annotated[
        dict[Annotated[str, Meta(max_length=255)], Annotated[str, Meta(max_length=64)]],
        Meta(max_length=4_096),
    ]


class Installed(msgspec.Struct):
    """Changed is True if another environment was current before."""

    changed: bool


class Token(msgspec.Struct):
    """A join token, and the address of the node that made it."""

    token: Annotated[str, Meta(max_length=16_384)]
    address: Text


class Started(msgspec.Struct):
    """Started is False if the node ran already; ``by`` names the program that keeps it running."""

    started: bool
    by: Annotated[str, Meta(max_length=64)]


class Ready(msgspec.Struct):
    """The node sees all others."""

    version: Annotated[str, Meta(max_length=64)]


class Stopped(msgspec.Struct):
    """The result of ``take_down`` on a host; ``there`` is False if ``dios up`` had made nothing there."""

    stopped: bool
    deleted: bool
    there: bool


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a host: a step's name, the reason of a failure, or the answer under the request's name."""

    progress: Text = ""
    failed: Annotated[str, Meta(max_length=32_768)] = ""
    look: Looked | None = None
    install: Installed | None = None
    token: Token | None = None
    start: Started | None = None
    wait: Ready | None = None
    stop: Stopped | None = None
