"""The manifests of `deploy/kubernetes`: valid by the API's own schema, consistent, and safe."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from extproc.config import load
from extproc.envoyconf.bootstrap import bootstrap

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FORMS = ["shared", "sidecar"]
VERSION = "1.33"
"""The oldest Kubernetes whose schema has all that is used here: sidecars and ``preStop.sleep``."""


def kustomization(form: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / form / "kustomization.yaml").read_text())
    return found


def resources(form: str) -> list[dict[str, Any]]:
    return [
        document
        for name in kustomization(form)["resources"]
        for document in yaml.safe_load_all((FOLDER / form / name).read_text())
    ]


def pod(form: str) -> dict[str, Any]:
    (found,) = [each for each in resources(form) if each["kind"] == "Deployment"]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def containers(form: str) -> list[dict[str, Any]]:
    return [*pod(form).get("initContainers", []), *pod(form)["containers"]]


@pytest.mark.parametrize("form", FORMS)
def test_every_resource_is_valid(form: str) -> None:
    for resource in resources(form):
        kubernetes_validate.validate(resource, VERSION, strict=True)


@pytest.mark.parametrize("form", FORMS)
def test_every_file_is_used(form: str) -> None:
    made = kustomization(form)
    used = {"kustomization.yaml", *made["resources"]}
    used.update(file for each in made["configMapGenerator"] for file in each["files"])
    assert {path.name for path in (FOLDER / form).iterdir()} == used


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kustomize itself is not installed")
def test_kustomize_builds_it(form: str) -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / form)], capture_output=True, text=True, check=True
    )
    documents = list(yaml.safe_load_all(built.stdout))
    assert {"ConfigMap", "Deployment", "Service"} <= {each["kind"] for each in documents}
    assert {each["metadata"].get("namespace", "tidegate") for each in documents} == {"tidegate"}


@pytest.mark.parametrize("form", FORMS)
def test_the_configuration_is_one(form: str) -> None:
    config = load(FOLDER / form / "tidegate.yaml")
    ports = {port["containerPort"] for each in containers(form) for port in each["ports"]}
    assert int(config.listen.http.rpartition(":")[2]) in ports
    mounted = [mount["mountPath"] for mount in containers(form)[0]["volumeMounts"]]
    assert any(str(config.state.outbox).startswith(path) for path in mounted)


def test_the_sidecars_envoy_is_the_generated_one() -> None:
    config = load(FOLDER / "sidecar" / "tidegate.yaml")
    written = (FOLDER / "sidecar" / "envoy.yaml").read_text(encoding="utf-8")
    assert written == bootstrap(config), "generate it again, see sidecar/kustomization.yaml"


def test_envoy_and_its_sidecar_share_the_socket() -> None:
    config = load(FOLDER / "sidecar" / "tidegate.yaml")
    socket = Path(config.listen.processor.removeprefix("unix://"))
    for container in containers("sidecar"):
        assert {"name": "socket", "mountPath": str(socket.parent)} in container["volumeMounts"]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_runs_as_root_or_writes_where_it_should_not(form: str) -> None:
    assert pod(form)["securityContext"]["runAsNonRoot"] is True
    assert pod(form)["automountServiceAccountToken"] is False
    for container in containers(form):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize(("form", "before", "after"), [("sidecar", 35, 0), ("shared", 5, 2 + 30)])
def test_a_stop_leaves_time_for_what_runs(form: str, before: int, after: int) -> None:
    """Envoy drains before it is told to stop, Tidegate afterwards."""
    assert pod(form)["terminationGracePeriodSeconds"] > before + after
    assert containers(form)[-1]["lifecycle"]["preStop"]["sleep"]["seconds"] == before
