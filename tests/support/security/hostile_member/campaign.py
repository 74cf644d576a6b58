"""Plays by seed: a member joins, plays, is removed; the honest nodes must be intact before and after.

A seed decides the play and every lie in it, so that it repeats a finding on a fresh cluster.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import trio

from dios.transport.identity import identity
from tests.support.security.hostile_member import traitors
from tests.support.security.hostile_member.honest_nodes import HonestNodes
from tests.support.security.hostile_member.member import joined
from tests.support.security.hostile_member.plays import PLAYS

PLAY_S: Final = 240.0


class Played(NamedTuple):
    """The count of a play's lies, and its name."""

    name: str
    lies: int


class FoundError(Exception):
    """The honest nodes were harmed by the play of a seed."""

    def __init__(self, seed: int, play: str, words: str) -> None:
        super().__init__(words)
        self.seed: Final = seed
        self.play: Final = play


def name_of(seed: int) -> str:
    """Return the name of the play of a seed."""
    names = sorted(PLAYS)
    return names[seed % len(names)]


def play(nodes: HonestNodes, seed: int, lies: int, folder: Path, name: str = "") -> Played:
    """Run the play of a seed; raise FoundError with its last lies if the honest nodes are harmed."""
    return trio.run(_play, nodes, seed, lies, folder, name or name_of(seed))


async def _play(nodes: HonestNodes, seed: int, lies: int, folder: Path, name: str) -> Played:
    liar = f"liar-{seed}"
    me = await nodes.admit(folder / liar, liar, seed % 3)
    sleeper = identity.admit_here(me, folder / f"{liar}-sleeper", name=f"{liar}-sleeper")
    story: list[str] = []
    told = 0
    try:
        with trio.fail_after(PLAY_S):
            async with joined(me, sleeper, nodes.victims, seed, nodes.own) as member:
                member.folder = Path(tempfile.mkdtemp(dir=folder))
                member.issue = nodes.token
                for person in nodes.persons:
                    for sort, number in person.numbers():
                        member.pools.add(sort, number)
                try:
                    await PLAYS[name](member, lies)
                    await member.lines()
                    assert not member.malformed, member.malformed[:3]
                    await trio.to_thread.run_sync(nodes.is_intact)
                    await trio.to_thread.run_sync(nodes.forget, me, (seed + 1) % 3)
                    for victim in member.victims:
                        served = await member.served_by(victim)
                        assert not served, f"{victim.at.name} still serves {served}"
                    if member.held_back:
                        await traitors.release(member)
                        await trio.to_thread.run_sync(nodes.is_intact)
                    await trio.to_thread.run_sync(nodes.forget_met, member.admitted)
                finally:
                    story, told = list(member.story), member.told
            await trio.to_thread.run_sync(nodes.is_intact)
    except Exception as error:
        last = "\n".join(story[-60:])
        raise FoundError(
            seed,
            name,
            f"play {name}, seed {seed}, {lies} lies: {reasons(error)}\nthe last lies:\n{last}",
        ) from error
    finally:
        for folder_name in (liar, f"{liar}-sleeper"):
            shutil.rmtree(folder / folder_name, ignore_errors=True)
    return Played(name, told)


def reasons(error: BaseException) -> str:
    """Return what went wrong, with the notes, and for a group each of its errors."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(reasons(cause) for cause in error.exceptions)
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
