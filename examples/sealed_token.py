"""Give a right to files to another cluster: issue a sealed token, narrow it offline, read with it, revoke it.

The two clusters must trust each other at their borders (docs/tokens.md)::

    python examples/sealed_token.py HOME_NODE OTHER_NODE
"""

from __future__ import annotations

import os
import sys
import time

from blake3 import blake3

import dios
from dios.lib import catalogue, tokens
from dios.lib.catalogue import CatalogueEntry


def main(home: str, abroad: str) -> None:
    """Store a file at ``home``, and read it by a token at ``abroad``."""
    with dios.connect(home) as session:
        # `dios put` does this: a group, a file in it, and the list of the group's files.
        group = session.create_group()
        data = b"a first note"
        note = session.create(dios.ObjectType.DURABLE_BLOB, groups=[group], data=data)
        entry = CatalogueEntry(
            "notes/one.txt", note.name or b"", len(data), time.time_ns(), blake3(data).digest()
        )
        listed = session.create(dios.ObjectType.DURABLE_BLOB, groups=[group], data=catalogue.encode([entry]))

        # The issuer makes a token for the whole group, for an hour.
        token, record = tokens.issue_token(
            session,
            group,
            listed,
            cluster=tokens.cluster_of(home),
            issuer=f"uid:{os.getuid()}",
            expires_ns=time.time_ns() + 3_600 * 10**9,
            alias="notes",
        )

        # A holder narrows it to a folder and to the other cluster, without asking a node.
        theirs = tokens.OnlyHolder(tokens.cluster_of(abroad))
        narrow = tokens.attenuate(token, tokens.only_path("notes"), theirs)
        text = tokens.format_token(narrow)

        # A user of the other cluster reads with it.
        with tokens.import_token(text, abroad) as files:
            for row in files.files():
                print(f"read abroad: {len(files.read_bytes(row.path))} bytes of {row.path}")

            # The issuer takes it back, and every token that was made of it.
            record.destroy()
            try:
                files.read_bytes("notes/one.txt")
            except dios.NotPermittedError as error:
                print(f"refused: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
