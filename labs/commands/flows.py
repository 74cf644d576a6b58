"""``dios lab flows``: the flows of a capture of packets, as Figures 3.1 and 3.2 of the Sprayer thesis."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import argument, option
from dios.cli.common.output import counted, table, transfer, write_facts, write_json
from dios.cli.common.results import OutputOptions
from dios.errors import InvalidError

app: Final = CommandApplication()

_EXAMPLES: Final = (
    "\b\nFor example:\n  tcpdump -i eth0 -s 96 -w seen.pcap tcp\n  dios lab flows seen.pcap --out pictures"
    "\n  dios lab flows seen.pcap --json | jq .concurrency"
    "\b\nThe thesis has a trace of 48 hours of a backbone of 1 Gbit/s; see docs/experiments.md#spraying."
)


@app.command(epilog=_EXAMPLES)
def flows(
    source: Path = argument("CAPTURE", "A file of pcap or pcapng."),
    *,
    out: Path | None = option("--out DIR", "Directory for pictures of both figures."),
    window: float = option("--window US", "Length of a window in microseconds.", default=150.0),
    large: float = option("--large MB", "Flows above this number of megabytes are large.", default=10.0),
    output: OutputOptions,
) -> None:
    """Show how large the TCP flows of a capture are, and how many of them are active at a time.

    These are Figures 3.1 and 3.2 of the Sprayer thesis, with its numbers next to those of the capture. Few
    flows at a time mean that a core for each flow leaves cores idle, and that spraying can help. A flow is
    one direction of a connection. A window without packets does not count.
    """
    from labs.papers.sprayer.trace import describe_trace, read_trace  # noqa: PLC0415 - loads numpy
    from labs.plotting import draw  # noqa: PLC0415 - the same

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    if not 0 <= large < 1e12:
        raise InvalidError(f"--large {large:g}: give a number of megabytes that is not negative")
    with transfer(source.name, source.stat().st_size) as move:
        done = 0

        def progress(now: int) -> None:
            nonlocal done
            move(now - done)
            done = now

        trace = read_trace(source, progress)
    summary, pictures = describe_trace(trace, str(source), window_us=window, large_bytes=int(large * 1e6))
    if out is not None:
        for picture in pictures:
            path = out / f"{picture.name}.png"
            draw(picture, path)
            summary["pictures"].append(str(path))
    if output.as_json:
        write_json(summary)
        return
    write_facts(
        {
            "packets": f"{summary['packets']} of TCP in {summary['seconds']:.3g} s, "
            f"{summary['others']} others",
            "flows": f"{summary['flows']} with {counted(summary['bytes'], 'byte')}",
        }
    )
    rows = [
        [f"{row['up_to_bytes']:.0e}", f"{row['flows']:.1%}", f"{row['bytes']:.1%}"]
        for row in summary["sizes"]
    ]
    table(["UP TO BYTES", "FLOWS", "BYTES"], rows, right=["UP TO BYTES", "FLOWS", "BYTES"])
    every, big = summary["concurrency"]
    limit = f"{large:g} MB"
    columns = ["NUMBER", "THESIS", "HERE"]
    table(
        columns,
        [
            [f"bytes in flows above {limit}", "more than 75 %", f"{summary['large_share']:.1%}"],
            ["flows at a time, median", "4", f"{every['median']:g}"],
            ["flows at a time, 99th percentile", "14", f"{every['p99']:g}"],
            [f"above {limit} at a time, median", "1", f"{big['median']:g}"],
            [f"above {limit} at a time, 99th percentile", "6", f"{big['p99']:g}"],
        ],
    )
    write_facts({"pictures": ", ".join(summary["pictures"]) or None})
