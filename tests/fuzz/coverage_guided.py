"""Coverage-guided fuzzing of the codec and the core with atheris: inputs that reach new lines are kept.

    python -m tests.fuzz.coverage_guided [--seconds N] [--runs N] [--report DIR]

Atheris is installed in a separate environment. A finding becomes a file in ``tests/fuzz/corpus``, which
``test_core`` feeds to a core in every run of the suite.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["dios.core", "dios.wire"], enable_loader_override=False):
    from tests.fuzz.core_harness import OTHERS, CoreHarness, RandomInputs, split

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = ROOT / ".fuzz"
SEEDS = 200
INPUT_BYTES_MAX = 4_096
FRAMES_PER_MUTATION = 8


def one_input(data: bytes) -> None:
    """Feed an input to a new core; any exception is a finding."""
    CoreHarness(checked=False).feed(data)


def mutated(data: bytes, size_max: int, seed: int) -> bytes:
    """Mutate bytes with libFuzzer half of the time, otherwise change the sequence of inputs."""
    rng = Random(seed)  # noqa: S311 - repeatable dice, nothing secret
    if rng.random() < 0.5:
        changed: bytes = atheris.Mutate(data, size_max)
        return changed
    parts = list(split(data))
    choice = rng.random()
    if parts and choice < 0.3:
        del parts[rng.randrange(len(parts))]
    elif parts and choice < 0.6:
        parts.insert(rng.randrange(len(parts)), parts[rng.randrange(len(parts))])
    elif parts and choice < 0.7:
        place = rng.randrange(len(parts))
        parts[place] = (rng.randrange(OTHERS), parts[place][1])
    else:
        inputs = RandomInputs(rng, checked=False)
        for _ in range(FRAMES_PER_MUTATION):
            inputs.move()
        parts += split(bytes(inputs.script))
    told = b"".join(bytes([kind]) + len(body).to_bytes(2, "little") + body for kind, body in parts)
    return told[:size_max]


def seeds(folder: Path) -> None:
    """Write inputs of the structure-aware generator as a start."""
    for seed in range(SEEDS):
        inputs = RandomInputs(Random(seed), checked=False)  # noqa: S311 - the same
        for _ in range(5 + seed % 40):
            inputs.move()
        (folder / f"seed-{seed}").write_bytes(bytes(inputs.script)[:INPUT_BYTES_MAX])


def main() -> int:
    """Fuzz in a separate process, and print the result; return 1 for a finding."""
    parser = argparse.ArgumentParser(description="Fuzz the codec and the core, guided by coverage.")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--report", type=Path, default=None)
    parser.add_argument("--inside", type=Path, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside is not None:
        options = [f"-max_total_time={chosen.seconds}", f"-runs={chosen.runs}", f"-max_len={INPUT_BYTES_MAX}"]
        options += [
            "-rss_limit_mb=2048",
            "-timeout=10",
            f"-artifact_prefix={FINDINGS}/core-",
            str(chosen.inside),
        ]
        atheris.Setup([sys.argv[0], *options], one_input, custom_mutator=mutated)
        atheris.Fuzz()
        return 0
    return outside(chosen.seconds, chosen.runs, chosen.report)


def outside(seconds: int, runs: int, report: Path | None) -> int:
    """Start the fuzzer, which ends its own process, and parse its output."""
    FINDINGS.mkdir(exist_ok=True)
    corpus = Path(tempfile.mkdtemp(prefix="dios-fuzz-corpus-"))
    try:
        seeds(corpus)
        sys.stdout.write(f"codec and core, guided by coverage: {seconds} s from {SEEDS} seeds\n")
        sys.stdout.flush()
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.coverage_guided",
            f"--seconds={seconds}",
            f"--runs={runs}",
        ]
        with subprocess.Popen(
            [*command, f"--inside={corpus}"], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        ) as process:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if "pulse" in line or "DONE" in line:
                    sys.stdout.write("  " + line)
                    sys.stdout.flush()
        if process.returncode:
            sys.stdout.write("FINDING\n" + "".join(said[-40:]))
            sys.stdout.write(
                f"its input is in {FINDINGS.name}/; copy it to tests/fuzz/corpus and run the suite\n"
            )
            return 1
        told = re.findall(r"#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+)", "".join(said))
        if report is not None and told:
            path = report / "fuzz.json"
            known = json.loads(path.read_text()) if path.exists() else {}
            done, lines, features = (int(number) for number in told[-1])
            known["core"] = {
                "runs": done,
                "edges": lines,
                "features": features,
                "seconds": seconds,
                "findings": 0,
            }
            path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    finally:
        shutil.rmtree(corpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
