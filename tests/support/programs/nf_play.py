"""A network function between interfaces, for the lab: runs until its input ends, then says what it did.

Not for: people (``dios nf run``). Run as a program inside the namespace of the function.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from dios.sprayer.linux.af_packet import open_engine, processors
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.runtime.running import report
from dios.sprayer.runtime.workers import Workers


def main() -> None:
    """Say ``ready``, wait for the end of the input, and say what each core did."""
    reader = argparse.ArgumentParser()
    reader.add_argument("--pair", required=True, nargs=2, action="append")
    reader.add_argument("--cores", type=int, default=2)
    reader.add_argument("--how", default="af_packet")
    reader.add_argument("--steer", default="spray")
    reader.add_argument("--places", type=int, default=1024)
    reader.add_argument("--secret", type=int)
    reader.add_argument("--records", type=Path, required=True)
    reader.add_argument("--function", default="", help="module:Class(arguments)")
    given = reader.parse_args()
    with open_engine(
        [(inside, outside) for inside, outside in given.pair],
        given.cores,
        how=given.how,
        steer=given.steer,
        places=given.places,
        pin=processors(given.cores),
        secret=given.secret,
        records=given.records,
    ) as engine:
        workers = Workers(_function(given.function), engine, seed=engine.secret)
        workers.turn(0, 0)  # what is compiled at the first turn is compiled now
        with workers:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.read()
        cores_in_turn = range(given.cores)
        while True:
            # What waits in rings belongs to what arrived, and a frame may come while that is counted.
            while any(workers.turn(core) for core in cores_in_turn):
                pass
            engines = [asdict(engine.statistics(core)) for core in cores_in_turn]
            if not any(workers.turn(core) for core in cores_in_turn):
                break
        cores = report(workers, engine)["cores"]
        assert isinstance(cores, list)
        told = [
            {
                **asdict(workers.statistics(core)),
                "engine": engines[core],
                "dropped": cores[core]["dropped"],
            }
            for core in cores_in_turn
        ]
        sys.stdout.write(json.dumps(told))


def _function(text: str) -> NetworkFunction | None:
    if not text:
        return None
    module, _, expression = text.partition(":")
    function: object = eval(expression, dict(vars(import_module(module))))  # noqa: S307 - the test's own text
    assert isinstance(function, NetworkFunction)
    return function


if __name__ == "__main__":
    main()
