"""A cluster in Kubernetes: applies the manifests of ``cluster/kubernetes`` with ``kubectl``.

The manifests stay as they are; an overlay of kustomize has the wishes. A token for the pods that join is in a
Secret for as long as they need it, and reaches kubectl by a pipe.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from dios.errors import DiosError, InvalidError, NotSupportedError
from dios.node import cluster
from dios.node.settings import KEYS, load

NAME: Final = "dios"
PODS_MAX: Final = 512
TIMEOUT: Final = "300s"
_OWN_KEYS: Final = frozenset({*cluster.REMEMBERED, "socket", "log_file", "record"})
_KINDS: Final = "statefulset,service,networkpolicy,poddisruptionbudget,secret,persistentvolumeclaim"
_LABEL: Final = "app.kubernetes.io/name=dios"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes for a cluster; ``settings`` are of every node. Empty texts keep those of the manifests."""

    nodes: int
    namespace: str = NAME
    image: str = ""
    storage: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise InvalidError or SettingsError for a wrong value."""
        if not 1 <= self.nodes <= PODS_MAX:
            raise InvalidError(f"the cluster has 1 to {PODS_MAX} nodes, not {self.nodes}")
        for value, form, option in (
            (self.namespace, _NAMESPACE, "--namespace"),
            (self.image or "dios", _IMAGE, "--image"),
            (self.storage or "1Gi", _QUANTITY, "--storage"),
        ):
            if not form.fullmatch(value):
                raise InvalidError(f"{option} cannot be {value!r}: see the documentation of Kubernetes")
        for key in self.settings:
            if key in _OWN_KEYS and key in KEYS:
                raise InvalidError(f"{key} is chosen separately for each pod. Leave it out.")
        load(Path("/nonexistent"), flags=self.settings, environ={})


class Member(msgspec.Struct):
    """A node as ``dios node ls`` in a pod shows it."""

    name: Annotated[str, Meta(max_length=63)]
    status: Annotated[str, Meta(max_length=16)]
    rack: Annotated[str, Meta(max_length=253)] = ""
    address: Annotated[str, Meta(max_length=512)] = ""


Members = Annotated[list[Member], Meta(max_length=4_096)]


class _Status(msgspec.Struct, rename="camel"):
    ready_replicas: Annotated[int, Meta(ge=0, le=2**31)] = 0


class _StatefulSet(msgspec.Struct):
    status: _Status


class _Token(msgspec.Struct):
    token: Annotated[str, Meta(max_length=16_384)]


class KubernetesError(DiosError):
    """A command of kubectl failed."""


def manifests() -> Path:
    """Return the folder of the manifests: of the checkout, else of the installed package."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package.parent / "cluster" / "kubernetes", package / "deploy" / "kubernetes"):
        if (folder / "kustomization.yaml").is_file():
            return folder
    raise NotSupportedError(
        "the manifests are missing: this installation of dios is incomplete. Install it again."
    )


def write_overlay(folder: Path, wanted: Wanted) -> None:
    """Write the manifests into a folder, with an overlay that has the wishes."""
    shutil.copytree(manifests(), folder / "base")
    patch: list[dict[str, object]] = [
        {
            "op": "add",
            "path": "/spec/template/spec/containers/0/env/-",
            "value": {"name": f"DIOS_{key.upper()}", "value": value},
        }
        for key, value in sorted(wanted.settings.items())
    ]
    if wanted.storage:
        path = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage"
        patch.append({"op": "replace", "path": path, "value": wanted.storage})
    overlay: dict[str, object] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": wanted.namespace,
        "resources": ["base"],
        "replicas": [{"name": NAME, "count": wanted.nodes}],
    }
    if wanted.image:
        overlay["images"] = [{"name": NAME, **_image(wanted.image)}]
    if patch:
        target = {"kind": "StatefulSet", "name": NAME}
        overlay["patches"] = [{"target": target, "patch": json.dumps(patch)}]
    # JSON is YAML, so that no library for YAML is needed.
    (folder / "kustomization.yaml").write_text(json.dumps(overlay, indent=2) + "\n", encoding="utf-8")


def _image(text: str) -> dict[str, str]:
    name, at, digest = text.partition("@")
    if at:
        return {"newName": name, "digest": digest}
    # A colon before the last slash belongs to the registry's port.
    name, colon, tag = text.rpartition(":")
    if colon and "/" not in tag:
        return {"newName": name, "newTag": tag}
    return {"newName": text, "newTag": "latest"}


def render(wanted: Wanted) -> str:
    """Return the manifests with the wishes, as kubectl would apply them."""
    with tempfile.TemporaryDirectory(prefix="dios-") as name:
        write_overlay(Path(name), wanted)
        return _kubectl("kustomize", name)


def bring_up(wanted: Wanted, *, report: Callable[[str], None] = lambda _: None) -> list[Member]:
    """Apply the manifests, let the pods join, and return the nodes when all are ready.

    Raise NotSupportedError without kubectl, KubernetesError.
    """
    inside = ("--namespace", wanted.namespace)
    report("applying the manifests")
    _kubectl("apply", "--filename", "-", stdin=render(wanted))
    if _ready(wanted) < wanted.nodes:
        report(f"{NAME}-0 makes the cluster")
        _kubectl(*inside, "wait", "--for=condition=Ready", f"pod/{NAME}-0", f"--timeout={TIMEOUT}")
        try:
            if wanted.nodes > 1:
                _make_token(wanted)
            report("the others join")
            _kubectl(*inside, "rollout", "status", f"statefulset/{NAME}", f"--timeout={TIMEOUT}")
        finally:
            _kubectl(*inside, "delete", "secret", "dios-join", "--ignore-not-found")
    said = _kubectl(*inside, "exec", f"{NAME}-0", "--", "dios", "node", "ls", "--json")
    with _valid_answers():
        return msgspec.json.decode(said, type=Members)


def _ready(wanted: Wanted) -> int:
    said = _kubectl("--namespace", wanted.namespace, "get", "statefulset", NAME, "--output", "json")
    with _valid_answers():
        return msgspec.json.decode(said, type=_StatefulSet).status.ready_replicas


def _make_token(wanted: Wanted) -> None:
    """Put a token for all other pods into a Secret; it is in no argument and in no annotation."""
    inside = ("--namespace", wanted.namespace)
    said = _kubectl(
        *(*inside, "exec", f"{NAME}-0", "--", "dios-node", "invite", "--data", "/var/lib/dios"),
        *("--uses", str(wanted.nodes - 1), "--valid", "15min", "--json"),
    )
    with _valid_answers():
        token = msgspec.json.decode(said, type=_Token).token
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "dios-join", "labels": {"app.kubernetes.io/name": NAME}},
        "stringData": {"token": token},
    }
    _kubectl(*inside, "delete", "secret", "dios-join", "--ignore-not-found")
    # Not applied: `kubectl apply` would keep a copy in an annotation.
    _kubectl(*inside, "create", "--filename", "-", stdin=json.dumps(secret))


def take_down(namespace: str, *, delete: bool, report: Callable[[str], None] = lambda _: None) -> None:
    """End the pods; with ``delete`` remove everything with our label, the claims of volumes included."""
    inside = ("--namespace", namespace)
    if not delete:
        report("ending the pods")
        _kubectl(*inside, "scale", f"statefulset/{NAME}", "--replicas=0")
        return
    report("deleting everything")
    _kubectl(*inside, "delete", _KINDS, "--selector", _LABEL, "--ignore-not-found")
    only = f"--field-selector=metadata.name={namespace}"
    _kubectl("delete", "namespace", "--selector", _LABEL, only, "--ignore-not-found")


def _kubectl(*words: str, stdin: str = "") -> str:
    """Run kubectl; return its output. Raise NotSupportedError, KubernetesError."""
    try:
        done = subprocess.run(["kubectl", *words], input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotSupportedError("kubectl is not installed here. Install it, and choose a context.") from None
    if done.returncode:
        why = (done.stderr.strip() or "no reason was given").splitlines()[-1]
        raise KubernetesError(f"`kubectl {' '.join(_shown(words))}` failed: {why}")
    return done.stdout


def _shown(words: Sequence[str]) -> Sequence[str]:
    return [*words[:6], "…"] if len(words) > 6 else words


@contextlib.contextmanager
def _valid_answers() -> Iterator[None]:
    """Turn an answer that is not valid into KubernetesError."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise KubernetesError(f"the cluster answered with something else than expected: {error}") from None
