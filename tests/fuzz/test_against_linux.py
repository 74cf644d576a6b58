"""Network functions and Linux agree about a few hundred random datagrams; ``make fuzz-linux`` sends many.

Skipped with the reason where this machine has no namespaces, nftables or TAYGA.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.fuzz.against_linux import KINDS, Play, differences
from tests.fuzz.scapy_packets import Generator
from tests.support.lab.namespaces import NotHereError
from tests.support.sprayer.linux_router import Kind, LinuxRouter

FRAMES = 1_500


@pytest.mark.long
@pytest.mark.timeout(900)  # the compilation of a function may take minutes
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_and_linux_agree(kind: Kind) -> None:
    """Each datagram passes both with the same contents, or neither, or has an explained difference."""
    try:
        linux = LinuxRouter(kind)
    except (NotHereError, OSError) as error:
        pytest.skip(f"this machine cannot compare with Linux: {error}")
    with contextlib.closing(linux):
        comparison = Play(kind, 1, linux).run(FRAMES)
    assert not comparison.findings, [
        (finding.verdict, finding.sample.role, sorted(finding.sample.features))
        for finding in comparison.findings
    ]
    assert comparison.forwarded > comparison.datagrams // 3


def test_explanations_are_for_features_that_exist() -> None:
    """Each explained difference names a feature that the generator gives its datagrams, and a reason."""
    features: set[str] = set()
    for kind in KINDS:
        generator = Generator(kind, 1)
        for number in range(1_000):
            session = generator.session()
            if number % 2:
                session.opened = session.answered = True
                session.packets = (bytes(60), bytes(60))
            features |= generator.sample(session).features
    for difference in differences():
        assert set(difference.features) <= features, set(difference.features) - features
        assert len(difference.reason.split()) > 3
