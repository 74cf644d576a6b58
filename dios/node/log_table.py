"""The rows of the table ``log``: the newest records of the node's log, for ``dios node logs``."""

from __future__ import annotations

from msgspec.structs import replace

from dios.core.calls.tables import LOG, TABLE_ROWS_MAX
from dios.host.loop.node_log import NodeLog
from dios.wire.messages import TableRows


def completed(answer: TableRows, node_log: NodeLog) -> TableRows:
    """Return the table ``log`` with its rows from a position on; other answers as they are.

    The answer of the core has that position in ``following``. It is the position of the next row in the
    completed one, or 0 if there are no more rows now.
    """
    if answer.table != LOG:
        return answer
    lines, more = node_log.read(answer.following, TABLE_ROWS_MAX)
    rows = tuple(
        (line.position, line.number, line.level, line.source, line.message, line.fields_json)
        for line in lines
    )
    return replace(answer, rows=rows, following=lines[-1].position + 1 if more else 0)
