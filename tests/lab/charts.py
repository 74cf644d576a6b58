"""``make charts``: the files for Kubernetes, Helm and Docker Compose, checked by tools that know them.

Kubernetes' own schemas check the manifests (kubernetes-validate), Helm's own library lints and renders the
chart (helm-python-sdk), and the schema of the Compose specification checks the compose file
(check-jsonschema). No cluster and no engine is needed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import helm_python
import kubernetes_validate
import yaml

from dios.node.bringup import kubernetes

CLUSTER: Final = Path(__file__).resolve().parents[2] / "cluster"
CHART: Final = CLUSTER / "helm"
OLDEST: Final = "1.27"
NEWEST: Final = "1.34"
VARIANT: Final = {
    "nodes": 7,
    "image": {"repository": "registry.example:5000/dios", "tag": "0.2.0"},
    "storage": "1Ti",
    "storageClass": "fast",
    "settings": {"pool_size": 8, "leases": False},
    "seccompProfile": "",
    "networkPolicy": False,
}
REFUSED: Final = ({"node": 3}, {"nodes": 0}, {"storage": "much"}, {"settings": {"PATH": "x"}})


class FailedError(Exception):
    """A file is not as it should be."""


def step(title: str) -> None:
    """Say what was checked."""
    sys.stdout.write(f"{title}\n")
    sys.stdout.flush()


def require(condition: object, description: str) -> None:
    """Raise FailedError if a condition does not hold."""
    if not condition:
        raise FailedError(description)


def documents(text: str) -> list[dict[str, object]]:
    """The objects of a text of YAML."""
    return [document for document in yaml.safe_load_all(text) if document]


def validate(objects: list[dict[str, object]], subject: str) -> None:
    """Check objects against the schemas of the oldest and the newest Kubernetes."""
    for version in (OLDEST, NEWEST):
        for manifest in objects:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise FailedError(f"{subject}, {manifest['kind']}: {error}") from None
    kinds = ", ".join(sorted(str(document["kind"]) for document in objects))
    step(f"{subject}: {kinds} are valid for Kubernetes {OLDEST} and {NEWEST}")


def rendered(values: dict[str, object]) -> list[dict[str, object]]:
    """The objects of the chart with these values."""
    files = helm_python.Chart.load(CHART).render(values, name="dios", namespace="dios")
    return [
        manifest for name, text in files.items() if not name.endswith(".txt") for manifest in documents(text)
    ]


def check_manifests() -> list[dict[str, object]]:
    """The manifests as `dios up --on kubernetes` applies them; none without kubectl."""
    if shutil.which("kubectl") is None:
        step("kubectl is not installed: the manifests were not rendered")
        return []
    wanted = kubernetes.Wanted(5, "lab", "registry.example:5000/dios:0.2.0", "20Gi", {"pool_size": "8"})
    wanted.check()
    validate(documents(kubernetes.render(wanted)), "dios up --on kubernetes with options")
    objects = documents(kubernetes.render(kubernetes.Wanted(3)))
    validate(objects, "dios up --on kubernetes")
    return objects


def check_chart(manifests: list[dict[str, object]]) -> None:
    """The chart is linted, renders to valid objects, refuses wrong values, and equals the manifests."""
    report = helm_python.lint(CHART, strict=True)
    worst = [message for message in report["messages"] if message["severity"] > 1]
    require(not report["errors"] and not worst, f"helm lint: {report}")
    step(f"helm lint --strict, Helm {helm_python.helm_sdk_version()}: no finding")
    validate(rendered({}), "the chart")
    objects = rendered(VARIANT)
    validate(objects, "the chart with other values")
    require(
        "NetworkPolicy" not in {manifest["kind"] for manifest in objects},
        "networkPolicy: false has no effect",
    )
    chart = helm_python.Chart.load(CHART)
    for values in REFUSED:
        try:
            chart.validate_schema(values)
        except helm_python.HelmError:
            continue
        raise FailedError(f"the chart takes {values}")
    step("the chart refuses wrong values")
    if manifests:
        same = {
            str(manifest["kind"]): plain(manifest)
            for manifest in manifests
            if manifest["kind"] != "Namespace"
        }
        own = {
            str(manifest["kind"]): plain(manifest)
            for manifest in rendered({"image": {"repository": "dios", "tag": "local"}})
        }
        different = sorted(kind for kind in same | own if same.get(kind) != own.get(kind))
        require(not different, f"chart and manifests differ: {different}")
        step("the chart's defaults are the manifests")


def plain(manifest: dict[str, object]) -> object:
    """An object without what Helm and kustomize set themselves."""
    metadata = manifest["metadata"]
    assert isinstance(metadata, dict)
    labels = {key: value for key, value in metadata["labels"].items() if not key.endswith("/version")}
    return {**manifest, "metadata": {"name": metadata["name"], "labels": labels}}


def check_compose() -> None:
    """The compose files have the form of the Compose specification."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    for name in ("compose.yaml", "metrics/compose.yaml"):
        done = subprocess.run([*command, str(CLUSTER / name)], capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"{name}: {done.stdout}{done.stderr}")
        step(f"cluster/{name} is valid for the Compose specification")


def main() -> int:
    """Check all files."""
    try:
        check_chart(check_manifests())
        check_compose()
    except FailedError as error:
        step(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
