from __future__ import annotations

import json
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.node.bringup import kubernetes
from dios.node.bringup.kubernetes import KubernetesError, Wanted

FAKE = """#!/bin/sh
echo "$*" >>{told}
case "$*" in
  kustomize*) cat "$2"/kustomization.yaml ;;
  "apply "*) cat >{folder}/applied ;;
  *"get statefulset"*) echo '{{"status": {{"readyReplicas": {ready}}}}}' ;;
  *"dios-node invite"*) echo '{{"token": "dios-join-1.secret"}}' ;;
  *" create "*) cat >{folder}/secret ;;
  *"rollout status"*) {rollout} ;;
  *"node ls"*) echo '[{{"name": "dios-0", "status": "alive"}}]' ;;
esac
"""


def kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, *, ready: int, rollout: str = "true") -> Path:
    """Put a kubectl first on the path that records its arguments, and return the record."""
    program = folder / "bin" / "kubectl"
    program.parent.mkdir()
    told = folder / "told"
    program.write_text(FAKE.format(told=told, folder=folder, ready=ready, rollout=rollout))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return told


def test_the_pods_join_with_a_token_that_no_argument_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token reaches kubectl by a pipe, and its Secret is deleted afterwards, also after a failure."""
    told = kubectl(tmp_path, monkeypatch, ready=1)
    members = kubernetes.bring_up(Wanted(3, settings={"pool_size": "8"}))
    assert [member.name for member in members] == ["dios-0"]
    assert json.loads((tmp_path / "secret").read_text())["stringData"] == {"token": "dios-join-1.secret"}
    assert "secret\n" not in told.read_text().replace("delete secret", "")
    assert "dios-join-1" not in told.read_text()
    assert told.read_text().splitlines()[-2].endswith("delete secret dios-join --ignore-not-found")
    assert '"DIOS_POOL_SIZE' in (tmp_path / "applied").read_text().replace("\\", "")


def test_the_secret_is_deleted_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the pods do not become ready, the error has kubectl's reason, and the token is gone."""
    told = kubectl(tmp_path, monkeypatch, ready=1, rollout="echo 'timed out' >&2; exit 1")
    with pytest.raises(KubernetesError, match="timed out"):
        kubernetes.bring_up(Wanted(3))
    assert told.read_text().splitlines()[-1].endswith("delete secret dios-join --ignore-not-found")


def test_a_cluster_that_is_ready_needs_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run applies the manifests, and asks for no token."""
    told = kubectl(tmp_path, monkeypatch, ready=3)
    kubernetes.bring_up(Wanted(3))
    assert "token" not in told.read_text()


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(0),
        Wanted(3, namespace="a b"),
        Wanted(3, image="--x"),
        Wanted(3, storage="much"),
        Wanted(3, settings={"name": "x"}),
        Wanted(3, settings={"pool_sise": "8"}),
    ],
)
def test_wrong_wishes_are_refused(wanted: Wanted) -> None:
    """A wrong value or setting is refused before kubectl is asked for anything."""
    with pytest.raises(InvalidError):
        wanted.check()


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("registry:5000/dios", {"newName": "registry:5000/dios", "newTag": "latest"}),
        ("registry:5000/dios:1", {"newName": "registry:5000/dios", "newTag": "1"}),
        ("dios@sha256:ab", {"newName": "dios", "digest": "sha256:ab"}),
    ],
)
def test_images_have_names_tags_and_digests(tmp_path: Path, image: str, parts: dict[str, str]) -> None:
    """The port of a registry is no tag."""
    kubernetes.write_overlay(tmp_path, Wanted(3, image=image))
    overlay = json.loads((tmp_path / "kustomization.yaml").read_text())
    assert overlay["images"] == [{"name": "dios", **parts}]
