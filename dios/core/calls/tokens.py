"""Sealed tokens: a session records the grant of one, and the session of a holder redeems it (ADR 0101).

The name of the record of a grant follows from the grant and the cluster's present secret. It seals the token,
and nobody but a node derives it. A node verifies the seal and every caveat by itself, by its own clock, and
then looks for the record as it looks for the record of a share: what a session finds by a token comes from
its reference to the record, and goes when the record is destroyed or the time is over.
"""

from __future__ import annotations

from dios import limits
from dios.core.calls import rights, sharing
from dios.core.calls.handlers import handles
from dios.core.model.records import Holder, Session
from dios.core.step import Step
from dios.errors import InvalidError, NotPermittedError
from dios.wire import messages
from dios.wire.sealed_tokens import (
    RIGHTS,
    TokenHolder,
    TokenTerms,
    cluster_text,
    decode_grant,
    decode_token,
    record_name,
    token_mark,
    verify,
)
from dios.wire.types import ObjectType, Permission


@handles(messages.IssueToken)
def issue(step: Step, task: Holder, seq: int, call: messages.IssueToken) -> None:
    """Make the record of a grant. The caller must be a session that is a member of the group.

    Raises:
        NotPermittedError: the caller is a task, or no member of the group, or the grant is of another user.
        InvalidError: the node is in no cluster, the grant is for another group or gives no right to read, or
            it ends in the past or in more than a year.
    """
    reference = rights.typed(rights.living(rights.held(task, call.group)), ObjectType.GROUP)
    group = reference.object
    if not isinstance(task, Session) or not rights.is_member(task, reference) or group.name is None:
        raise NotPermittedError(
            "only a process of a user who is a member of the group issues tokens",
            fingerprint=group.fingerprint,
        )
    if not step.state.secret:
        raise InvalidError("this node is in no cluster, so nothing seals its tokens; `dios up` makes one")
    grant = decode_grant(call.grant)
    if grant.issuer != task.principal:
        raise NotPermittedError("a token is issued in the name of the caller alone")
    if grant.group != group.name or not grant.rights & Permission.READ or grant.rights & ~int(RIGHTS):
        raise InvalidError("a token is for the group of the call, to read in it or to read and write")
    if not step.now < grant.expires_ns <= step.now + limits.LIFETIME_NS_MAX:
        raise InvalidError("a token ends in the future, and at most a year from now")
    name = record_name(step.state.secrets.sealing, grant)
    shown = sharing.make_record(step, task, name)
    step.audit(task, "token", "issued", group.fingerprint, f"token {token_mark(grant)}")
    step.answer(task, seq, messages.Created(name, shown))


@handles(messages.RedeemToken)
def redeem(step: Step, task: Holder, seq: int, call: messages.RedeemToken) -> None:
    """Verify a token for its holder, and let the session read in the group if the record is there.

    Raises:
        NotPermittedError: the caller is a task; it names another holder, or redeems a token for paths, and is
            not the node's own user; the token was forged or changed, is over, or is for another holder.
        InvalidError: the token cannot be read, or the node is in no cluster.
    """
    if not isinstance(task, Session):
        raise NotPermittedError("only a user's process redeems a token; a task is given references")
    if not step.state.secret:
        raise InvalidError("this node is in no cluster, so it can verify no token")
    token = decode_token(call.token)
    is_own = task.principal == step.state.node_owner
    if (call.cluster or call.user) and not is_own:
        raise NotPermittedError("only the node itself redeems a token for somebody else")
    holder = TokenHolder(call.cluster, call.user or task.principal)
    mark = f"token {token_mark(token.grant)}, {holder.user} of {cluster_text(holder.cluster)}"
    try:
        step.spend(len(step.state.later_secrets) // 4)
        record, terms = verify(step.state.secrets.sealed_with(), token, holder, step.now)
        _check_paths(terms, is_own=is_own)
    except NotPermittedError as error:
        step.audit(task, "redeem", "denied", task.object.fingerprint, f"{mark}: {error.message}")
        raise
    step.audit(task, "redeem", "verified", task.object.fingerprint, mark)
    grant = token.grant
    acceptance = messages.AcceptShare(grant.group, grant.nonce, grant.issuer, terms.expires_ns)
    sharing.look_for_record(step, task, seq, record, acceptance)


def _check_paths(terms: TokenTerms, *, is_own: bool) -> None:
    """Leave a token for paths to the border: a name says nothing of the path of its file."""
    if terms.paths and not is_own:
        raise NotPermittedError(
            "the token is for some files of the group only, which the border of the node checks: "
            "`dios token import` reads there"
        )
