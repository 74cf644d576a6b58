from __future__ import annotations

from dios.node.doctor.releases import compare


def test_one_release_everywhere_is_fine() -> None:
    """Equal releases need no advice."""
    assert compare("0.2.0", "0.2.0", {}).advice == ""
    check = compare("0.2.0", "0.2.0", {"n2": "0.2.0"})
    assert (check.detail, check.advice) == ("0.2.0 on 2 nodes", "")


def test_a_program_that_was_not_restarted_is_named() -> None:
    """An installed release that does not run yet asks for a restart."""
    check = compare("0.1.0", "0.2.0", {"n2": "0.2.0"})
    assert check.detail == "the node runs 0.1.0, and 0.2.0 is installed"
    assert "dios-node restart" in check.advice


def test_nodes_of_another_release_are_named() -> None:
    """In a mixed cluster the nodes with another release are named, at most four of them."""
    check = compare("0.2.0", "0.2.0", {f"n{number}": "0.1.0" for number in range(2, 9)} | {"n9": "0.2.0"})
    assert check.detail.startswith("0.2.0 here and on 1 of 8 other nodes; not on n2 (0.1.0), n3 (0.1.0)")
    assert check.detail.endswith("n5 (0.1.0), …")
    assert "finish the upgrade" in check.advice
