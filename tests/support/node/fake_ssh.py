"""An ssh client for tests: it runs the command on this machine, in a home directory of the host's own.

``make up-test`` runs the same commands through real servers.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from dios.node.bringup import dependencies, hosts, wheel

_PROGRAM = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2
shift 2
[ -d "{homes}/$host" ] || {{ echo "ssh: Could not resolve hostname $host" >&2; exit 255; }}
echo "a login script prints this"
HOME={homes}/$host
SSH_CONNECTION="127.0.0.1 1 $(cat "$HOME/address") 22"
PATH=/usr/local/bin:/usr/bin:/bin
export HOME SSH_CONNECTION PATH
unset XDG_CONFIG_HOME XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS
exec /bin/sh -c "$*"
"""


def make(folder: Path, addresses: Mapping[str, str]) -> Path:
    """Make the client, and a home for each host with its address; return the client's path."""
    homes = folder / "homes"
    for name, address in addresses.items():
        (homes / name).mkdir(parents=True)
        (homes / name / "address").write_text(address)
    program = folder / "ssh"
    program.write_text(_PROGRAM.format(homes=homes))
    program.chmod(0o755)
    return program


def install(prefix: Path, *, python: str) -> None:
    """Make an environment as ``dios up`` would, of this interpreter: installing takes pip many seconds.

    ``python`` is the version of the interpreter that the bootstrap finds.
    """
    package = wheel.of_running_version()
    digests = {
        package.name: hashlib.sha256(package.data).hexdigest(),
        "lock": hashlib.sha256(dependencies.OWN_LOCK.read_bytes()).hexdigest(),
    }
    name = "env-" + hosts.environment_name(digests, extras="", python=python)
    folder = prefix / name / "bin"
    folder.mkdir(parents=True)
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "python").chmod(0o755)
    (prefix / name / "complete").touch()
    (prefix / "env").symlink_to(name)
    (prefix / "made-by-dios-up").touch()
