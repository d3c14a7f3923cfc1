"""docker-compose.yaml: valid, hardened, and true to the files and commands that it names."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import typer
import yaml
from typer.core import TyperGroup

from extproc.app import DRAIN_SECONDS
from extproc.cli import app
from extproc.config import Config, load

OURS = {"tidegate", "engine-a", "engine-b", "load"}
VLLM = {"vllm-a", "vllm-b"}


@pytest.fixture(scope="module")
def services(stack: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(stack["services"])


@pytest.fixture(scope="module")
def config(directory: Path) -> Config:
    return load(directory / "tidegate.yaml")


@pytest.fixture(scope="module")
def dockerfile(directory: Path) -> str:
    return (directory / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def _option(service: dict[str, Any], name: str) -> str:
    command: list[str] = service["command"]
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
    raise AssertionError(f"{name} is not in {command}")


def test_it_follows_the_compose_specification(stack: dict[str, Any]) -> None:
    parsed = compose_spec.PyCompose.from_json(json.dumps(stack))
    parsed.validate()  # what services refer to is declared
    assert sorted(parsed.service_names()) == sorted(
        [*OURS, *VLLM, "envoy", "prometheus", "grafana"]
    )


def test_the_parser_of_the_specification_is_strict(stack: dict[str, Any]) -> None:
    broken = {**stack, "services": {"envoy": {"image": "x", "mem_limt": "1g"}}}
    with pytest.raises(ValueError, match="mem_limt"):
        compose_spec.PyCompose.from_json(json.dumps(broken))


@pytest.mark.parametrize("name", sorted(OURS))
def test_commands_are_commands_of_tidegate(services: dict[str, dict[str, Any]], name: str) -> None:
    word, *arguments = services[name]["command"]
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    # Parses and checks every option; runs nothing.
    group.commands[word].make_context(word, arguments)


def test_every_mounted_file_is_there(
    directory: Path, stack: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    used = set()
    for service in services.values():
        for volume in service.get("volumes", ()):
            source, _, rest = volume.partition(":")
            if source.startswith("."):
                assert (directory / source).exists(), volume
                assert rest.endswith(":ro"), volume
            else:
                used.add(source)
    assert used == set(stack["volumes"])


def test_what_must_be_healthy_first_has_a_health_check(
    services: dict[str, dict[str, Any]], dockerfile: str
) -> None:
    assert "HEALTHCHECK" in dockerfile
    checked = {name for name, each in services.items() if "test" in each.get("healthcheck", {})}
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy"
            assert name in checked | {"tidegate"}
            # A service of a profile that is off is missing: only an optional one may be.
            assert "profiles" not in services[name] or how["required"] is False


def test_only_loopback_reaches_the_published_ports(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert sorted(ports) == [
        "127.0.0.1:3000:3000",
        "127.0.0.1:8080:8080",
        "127.0.0.1:9090:9090",
        "127.0.0.1:9091:9090",
    ]


def test_every_service_is_confined(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["init"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is (name not in VLLM)
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
        assert service["restart"] == ("no" if name == "load" else "unless-stopped")
        assert "privileged" not in service


def test_running_calls_may_end_before_tidegate_is_killed(
    services: dict[str, dict[str, Any]],
) -> None:
    assert float(services["tidegate"]["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS


def test_every_image_can_be_pinned_and_none_floats(
    directory: Path, services: dict[str, dict[str, Any]]
) -> None:
    lines = (directory / "docker-compose.yaml").read_text(encoding="utf-8").splitlines()
    images = [line.strip() for line in lines if line.lstrip().startswith("image:")]
    assert len(images) == 5
    assert all(re.fullmatch(r"image: \$\{[A-Z]+_IMAGE:-[^}]+\}", image) for image in images)
    for service in services.values():
        _, colon, tag = service["image"].partition(":")
        assert colon
        assert tag != "latest"


def test_all_speak_of_the_same_addresses_and_model(
    directory: Path, services: dict[str, dict[str, Any]], config: Config
) -> None:
    [(model, pool)] = config.pools.items()
    hosts = {f"{name}:{_option(services[name], '--port')}" for name in ("engine-a", "engine-b")}
    assert set(pool.endpoints.static or ()) == hosts
    for name in ("engine-a", "engine-b"):
        assert _option(services[name], "--model") == model
        assert _option(services[name], "--scheduling-policy") == pool.scheduling_policy
    for name in VLLM:
        assert _option(services[name], "--served-model-name") == model
        assert _option(services[name], "--scheduling-policy") == pool.scheduling_policy
        aliases = [network["aliases"] for network in services[name]["networks"].values()]
        assert aliases == [[name.replace("vllm", "engine")]] * 2
    assert _option(services["load"], "--model") == model
    assert _option(services["load"], "--url") == "http://envoy:" + _port(config.envoy.listener)

    jobs = yaml.safe_load((directory / "prometheus" / "prometheus.yaml").read_text())
    targets = {
        job["job_name"]: set(job["static_configs"][0]["targets"]) for job in jobs["scrape_configs"]
    }
    assert targets == {"tidegate": {"tidegate:" + _port(config.listen.http)}, "engine": hosts}
    assert config.envoy.processor == "tidegate:" + _port(config.listen.processor)
    assert f"/dev/tcp/{str(config.envoy.admin).replace(':', '/')};" in str(
        services["envoy"]["healthcheck"]
    )


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def test_services_that_talk_share_a_network(services: dict[str, dict[str, Any]]) -> None:
    talks = [("load", "envoy"), ("envoy", "tidegate"), ("grafana", "prometheus")]
    for engine in ("engine-a", "engine-b", *VLLM):
        talks += [("envoy", engine), ("tidegate", engine), ("prometheus", engine)]
    for one, other in talks:
        assert set(services[one]["networks"]) & set(services[other]["networks"]), (one, other)


def test_the_profile_decides_which_engines_run(
    directory: Path, services: dict[str, dict[str, Any]]
) -> None:
    profiles = {name: each["profiles"] for name, each in services.items() if "profiles" in each}
    assert profiles == {
        "engine-a": ["emulated"],
        "engine-b": ["emulated"],
        "vllm-a": ["vllm"],
        "vllm-b": ["vllm"],
        "load": ["load"],
    }
    lines = (directory / ".env").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["COMPOSE_PROFILES=emulated"]


def test_each_vllm_has_a_gpu_of_its_own(services: dict[str, dict[str, Any]]) -> None:
    devices = [
        services[name]["deploy"]["resources"]["reservations"]["devices"] for name in sorted(VLLM)
    ]
    gpu = {"driver": "nvidia", "capabilities": ["gpu"]}
    assert devices == [[{**gpu, "device_ids": ["0"]}], [{**gpu, "device_ids": ["1"]}]]


def test_no_secret_stands_in_a_file(services: dict[str, dict[str, Any]]) -> None:
    variables = {
        name: value
        for service in services.values()
        for name, value in service.get("environment", {}).items()
    }
    secret = re.compile("TOKEN|PASSWORD|SECRET|KEY")
    assert {name: value for name, value in variables.items() if secret.search(name)} == {
        "HF_TOKEN": None
    }
    assert variables["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert variables["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert variables["GF_AUTH_BASIC_ENABLED"] == "false"


def test_the_image_is_not_root_and_tells_when_it_is_ready(dockerfile: str, config: Config) -> None:
    assert len(re.findall(r"^FROM ", dockerfile, re.MULTILINE)) == 2
    assert re.search(r"^USER (\d+):\d+$", dockerfile, re.MULTILINE)
    assert f"http://127.0.0.1:{_port(config.listen.http)}/readyz" in dockerfile


def test_the_image_gets_all_that_the_package_is_built_from(
    directory: Path, dockerfile: str
) -> None:
    root = directory.parent
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for source in shlex.split(line)[:-1]
    }
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    meta = project["project"]
    assert copied == {"pyproject.toml", meta["readme"], *meta["license-files"], *packages}
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = [line.removeprefix("!") for line in lines if line.startswith("!")]
    for source in copied:
        assert (root / source).exists()
        assert any(fnmatch.fnmatch(source, pattern) for pattern in let_in), source
