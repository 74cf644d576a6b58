"""Statements of members against a small model, with a traitor among the signers, in every order."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest import mock

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dios import limits
from dios.errors import DiosError, LimitError, ProtocolError
from dios.transport.identity import durable_files, identity, statements
from dios.transport.identity.certificates import make_node
from dios.transport.identity.identity import Identity, admit_here, adopt, known_of, load
from dios.wire.node_roles import NodeRight, NodeRole
from tests.support.peers.connections import make_cluster, renewed
from tests.support.peers.stable_statements import Belief, Said, stable_beliefs
from tests.support.peers.statements import merge, revoke

HONEST_MAX = 4
SLEEPERS_MAX = 3
ROUNDS_MAX = 200
PLACES = st.integers(0, 50)
ROLES = st.sampled_from([NodeRole.AUTHORITY, NodeRole.MEMBER])


def _write(path: Path, data: bytes) -> None:
    """Write a file without waiting for the disk: these tests end no process."""
    path.write_bytes(data)
    path.chmod(0o600)


def _key(entropy: Random) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(entropy.randbytes(32))


def _said(data: bytes, authority: bytes) -> Said:
    statement = statements.read(data, authority)
    path = tuple((card.number, card.key) for card in statement.chain[:-1])
    kept = frozenset(statement.kept.items())
    return Said(data, statement.order, path, frozenset(statement.removed), kept)


def _one_that_signs(nodes: list[Identity], number: int) -> Identity:
    signers = [node for node in nodes if node.card.may(NodeRight.SIGN)]
    return signers[number % len(signers)]


class StatementMachine(RuleBasedStateMachine):
    """Honest nodes, a traitor, and more false nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._around = contextlib.ExitStack()
        self._around.enter_context(mock.patch.object(durable_files, "write", _write))
        # Ids and keys decide between two statements with one number, so a failure repeats with the same ones.
        entropy = Random(0)  # noqa: S311 - as above
        self._around.enter_context(mock.patch("os.urandom", entropy.randbytes))
        keys = SimpleNamespace(generate=lambda: _key(entropy))
        self._around.enter_context(mock.patch.object(identity, "Ed25519PrivateKey", keys))
        self._entropy = entropy
        self.folder = Path(tempfile.mkdtemp(prefix="dios-statements-"))
        self._around.callback(shutil.rmtree, self.folder)
        *self.honest, traitor = make_cluster(self.folder, "n1 n2 n3 bad", role=NodeRole.AUTHORITY)
        self.false = [traitor]
        self.pool: dict[bytes, Said] = {}
        self.names = 0
        for node in self.honest:
            for other in (*self.honest, traitor):
                node.trust.note(known_of(other.cards))

    def teardown(self) -> None:
        """Remove the files."""
        self._around.close()

    def _fresh(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def _publish(self, data: bytes) -> None:
        self.pool[data] = _said(data, self.honest[0].chain[-1])

    def _everybody(self) -> list[Identity]:
        return [*self.honest, *self.false]

    # -- members ------------------------------------------------------------------------------------
    @rule(place=PLACES, role=ROLES)
    def admit(self, place: int, role: NodeRole) -> None:
        """An honest node admits another; the others meet it unless they refuse it."""
        if len(self.honest) >= HONEST_MAX:
            return
        above = _one_that_signs(self.honest, place)
        name = self._fresh("late")
        new = admit_here(above, self.folder / name, name=name, role=role)
        for other in self.honest:
            if not other.trust.refusal(new.cards):
                other.trust.note(known_of(new.cards))
        self.honest.append(new)

    @rule(place=PLACES, role=ROLES)
    def hide(self, place: int, role: NodeRole) -> None:
        """A false node is admitted by another one, or by an honest one that knows no better."""
        if len(self.false) <= SLEEPERS_MAX:
            name, above = self._fresh("sleeper"), _one_that_signs(self._everybody(), place)
            self.false.append(admit_here(above, self.folder / name, name=name, role=role))

    @rule(whose=PLACES, by=PLACES)
    def renew_certificate(self, whose: int, by: int) -> None:
        """A node renews at any authority that it reaches, and is judged as before."""
        nodes = self.honest if whose % 2 else self.false
        place = whose // 2 % len(nodes)
        node, signer = nodes[place], _one_that_signs(self._everybody(), by)
        if signer.node == node.node or signer.trust.refusal(node.cards):
            return
        with contextlib.suppress(LimitError):
            signer.trust.note(known_of(node.cards))
        try:
            after = adopt(node, renewed(signer, node))
        except DiosError:
            return
        assert after.cards[1:] == node.cards[1:]
        nodes[place] = after

    @rule(whose=PLACES, by=PLACES, at=PLACES)
    def take_the_id_of_another(self, whose: int, by: int, at: int) -> None:
        """A statement under the id of a known node, with another key, changes nothing."""
        victim, signer = self.honest[whose % len(self.honest)], _one_that_signs(self.false, by)
        node = self.honest[at % len(self.honest)]
        if victim.node not in {known.node for known in node.trust.known}:
            return
        key = _key(self._entropy)
        certificate = make_node(
            victim.node, victim.name, key.public_key(), signer.chain[0], signer.key(), role=NodeRole.AUTHORITY
        )
        data = statements.make((certificate, *signer.chain), key, 2**40, {77: 0}, {}).data
        before = node.trust.statements
        with contextlib.suppress(ProtocolError):
            assert not merge(node.trust, data)
        assert node.trust.statements == before

    @rule(whose=PLACES, by=PLACES)
    def ask_for_renewal(self, whose: int, by: int) -> None:
        """An honest node renews the certificates of nodes that it knows, and of no other."""
        node = self._everybody()[whose % len(self._everybody())]
        signer = _one_that_signs(self.honest, by)
        known = {(member.node, member.key) for member in signer.trust.known}
        try:
            renewed(signer, node)
        except DiosError:
            is_renewed = (node.node, node.card.key) in known and node.card.node_role is NodeRole.MEMBER
            if is_renewed and len(signer.chain) < limits.CHAIN_CERTIFICATES_MAX - 1:
                raise
        else:
            assert (node.node, node.card.key) in known

    # -- statements ---------------------------------------------------------------------------------
    @rule(by=PLACES, victim=PLACES, restore=st.booleans())
    def remove(self, by: int, victim: int, *, restore: bool) -> None:
        """An honest node removes a node: the traitor, or another honest one that is gone."""
        node, target = self.honest[by % len(self.honest)], self._everybody()[victim % len(self._everybody())]
        if node.node != target.node:
            void = {said.data for said in self.pool.values() if said.signer == target.node}
            self._publish(revoke(node.trust, target.node, restore=restore))
            assert target.node in node.revoked
            assert not void & set(node.trust.statements)

    @rule(
        by=PLACES,
        number=st.integers(1, 6),
        removed=st.lists(PLACES, max_size=3),
        kept=st.lists(PLACES, max_size=3),
    )
    def lie(self, by: int, number: int, removed: list[int], kept: list[int]) -> None:
        """The traitor or one of its nodes states something, with any number, also one that it used before."""
        signer, all_of_them = self.false[by % len(self.false)], self._everybody()
        strikes: dict[int, int] = {all_of_them[place % len(all_of_them)].node: 0 for place in removed}
        strikes.pop(signer.node, None)
        stays: dict[int, bytes] = {
            member.node: member.card.key
            for member in (all_of_them[place % len(all_of_them)] for place in kept)
        }
        stays[signer.node] = signer.card.key
        self._publish(statements.make(signer.chain, signer.key(), number, strikes, stays).data)

    @rule(number=st.integers(1, 6))
    def conspire(self, number: int) -> None:
        """The traitor's nodes state that each of them removed the next, in a circle."""
        for place, signer in enumerate(self.false):
            target = self.false[place - 1].node
            if target != signer.node:
                own: dict[int, bytes] = {signer.node: signer.card.key}
                self._publish(statements.make(signer.chain, signer.key(), number, {target: 0}, own).data)

    @rule(which=PLACES, at=PLACES)
    def deliver(self, which: int, at: int) -> None:
        """Any statement arrives anywhere, early, late or again."""
        if self.pool:
            data = list(self.pool)[which % len(self.pool)]
            merge(self.honest[at % len(self.honest)].trust, data)

    @rule(place=PLACES)
    def restart(self, place: int) -> None:
        """A node that starts again believes the same."""
        at = place % len(self.honest)
        before = self.honest[at].trust
        again = load(self.honest[at].folder.parent)
        assert again is not None
        assert (again.trust.digest, again.revoked) == (before.digest, before.revoked)
        self.honest[at] = again

    # -- what holds ---------------------------------------------------------------------------------
    @rule(seed=st.integers(0, 2**32))
    def everybody_hears_everything(self, seed: int) -> None:
        """After everything was relayed everywhere, each node holds a stable set, and equal ones are one."""
        pool, rng = list(self.pool), Random(seed)  # noqa: S311 - repeatable, nothing secret
        for _ in range(ROUNDS_MAX):
            changes = [
                merge(node.trust, data) for node in self.honest for data in rng.sample(pool, len(pool))
            ]
            if not any(changes):
                break
        else:
            pytest.fail("the nodes change their minds for ever")
        self._compare()

    def _compare(self) -> None:
        said = list(self.pool.values())
        agreed: dict[Belief, bytes] = {}
        for node in self.honest:
            held = frozenset(self.pool[data] for data in node.trust.statements)
            possible = stable_beliefs(said, node.node)
            if not possible:
                continue  # members that remove each other in a circle
            assert held in possible, (node.name, held, possible)
            assert node.revoked == frozenset().union(*(statement.removed for statement in held)), node.name
            if len(possible) == 1:
                assert agreed.setdefault(possible[0], node.trust.digest) == node.trust.digest

    @invariant()
    def quotas_hold(self) -> None:
        """No signer has more than one statement or too long a list, and no void statement counts."""
        for node in self.honest:
            held = [self.pool[data] for data in node.trust.statements if data in self.pool]
            assert len({said.signer for said in held}) == len(held)
            assert all(len(said.removed) <= limits.NODES_REMOVED_BY_MEMBER_MAX for said in held)
            assert node.node in {known.node for known in node.trust.known}


StatementMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("DIOS_PROPERTY_EXAMPLES", "25")),
    stateful_step_count=30,
    deadline=None,
    derandomize="DIOS_PROPERTY_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
TestStatementMachine = StatementMachine.TestCase
