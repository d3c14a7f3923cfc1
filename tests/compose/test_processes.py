"""The services of the compose file as plain processes: the same commands, files and health checks.

Only addresses differ: every service listens on a free loopback port, and names of services become
those.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from extproc.envoyconf.binary import find_envoy
from extproc.stand.ports import free_ports

pytestmark = pytest.mark.e2e

START_SECONDS = 30.0
STOP_SECONDS = 10.0
_ADDRESS = re.compile(r"address: (\S+)\n(\s+)port_value: (\d+)")


@dataclass(frozen=True)
class Running:
    """The stack as processes: ports by ``service:port`` of the compose network."""

    stack: dict[str, Any]
    ports: dict[str, int]
    processes: dict[str, subprocess.Popen[bytes]]

    def url(self, service: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}{path}"


@pytest.fixture(scope="module")
def running(
    directory: Path, stack: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    names = (
        "engine-a:8000",
        "engine-b:8000",
        "tidegate:9002",
        "tidegate:9090",
        "envoy:8080",
        "envoy:9901",
    )
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    folder = tmp_path_factory.mktemp("compose")
    files = {
        "/etc/tidegate/tidegate.yaml": _tidegate_yaml(directory, ports),
        "/etc/envoy/envoy.yaml": _envoy_yaml(directory, ports),
    }
    places = {}
    for inside, text in files.items():
        place = folder / Path(inside).name
        place.write_text(text, encoding="utf-8")
        places[inside] = str(place)

    services = stack["services"]
    with ExitStack() as started:
        processes: dict[str, subprocess.Popen[bytes]] = {}

        def start(name: str, command: Sequence[str], health_check: Sequence[str]) -> None:
            command = [places.get(word, word) for word in command]
            log = folder / f"{name}.log"
            output = started.enter_context(log.open("wb"))
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            started.callback(_stop, process)
            processes[name] = process
            _wait_until_healthy(name, process, health_check, log)

        for name in ("engine-a", "engine-b"):
            port = str(ports[f"{name}:8000"])
            to_port = {"8000": port, "0.0.0.0": "127.0.0.1"}
            command = [to_port.get(word, word) for word in services[name]["command"]]
            start(name, [*_tidegate(), *command], _check(services[name], "8000", port))
        start(
            "tidegate",
            [*_tidegate(), *services["tidegate"]["command"]],
            _image_check(directory, str(ports["tidegate:9090"])),
        )
        program, *arguments = services["envoy"]["command"]
        assert program == "envoy"
        admin = str(ports["envoy:9901"])
        start(
            "envoy",
            [str(find_envoy()), *arguments, "--log-level", "warning"],
            _check(services["envoy"], "9901", admin),
        )
        yield Running(stack, ports, processes)


def _tidegate() -> list[str]:
    return [sys.executable, "-m", "extproc"]


def _tidegate_yaml(directory: Path, ports: dict[str, int]) -> str:
    text = (directory / "tidegate.yaml").read_text(encoding="utf-8")
    for name, port in ports.items():
        text = text.replace(f'"{name}"', f'"127.0.0.1:{port}"')
    for listened in ("9002", "9090"):
        text = text.replace(f"0.0.0.0:{listened}", f"127.0.0.1:{ports[f'tidegate:{listened}']}")
    return text


def _envoy_yaml(directory: Path, ports: dict[str, int]) -> str:
    listened = {"0.0.0.0:8080": "envoy:8080", "127.0.0.1:9901": "envoy:9901"}

    def replace(match: re.Match[str]) -> str:
        address = f"{match[1]}:{match[3]}"
        port = ports[listened.get(address, address)]
        return f"address: 127.0.0.1\n{match[2]}port_value: {port}"

    text, count = _ADDRESS.subn(replace, (directory / "envoy.yaml").read_text(encoding="utf-8"))
    assert count == 5
    return text


def _check(service: dict[str, Any], old: str, new: str) -> list[str]:
    kind, *command = service["healthcheck"]["test"]
    assert kind == "CMD"
    assert any(old in word for word in command)
    return [word.replace(old, new) for word in command]


def _image_check(directory: Path, port: str) -> list[str]:
    dockerfile = (directory / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    match = re.search(r"^HEALTHCHECK .*CMD (\[.+\])$", dockerfile, re.MULTILINE)
    assert match is not None
    return [word.replace("9090", port) for word in json.loads(match[1])]


def _wait_until_healthy(
    name: str, process: subprocess.Popen[bytes], check: Sequence[str], log: Path
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    deadline = time.monotonic() + START_SECONDS
    while subprocess.run(
        check, env={**os.environ, "PATH": path}, capture_output=True, timeout=10, check=False
    ).returncode:
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            pytest.fail(f"{name} is not healthy:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def test_each_class_is_answered_by_an_engine(running: Running) -> None:
    for tenant, service_class in (("pay", "P0"), ("service", "P1"), ("marketing", "P2")):
        response = httpx.post(
            running.url("envoy:8080", "/v1/chat/completions"),
            headers={"x-tenant-id": tenant},
            json={
                "model": "qwen-instruct",
                "messages": [{"role": "user", "content": "hello"}],
                "max_tokens": 4,
            },
            timeout=30,
        )
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["finish_reason"] in ("length", "stop")
        assert not response.json()["id"].startswith("chatcmpl-promo-shedded-")
        admitted = f'class="{service_class}",pool="qwen-instruct",reason="admitted",verdict="admit"'
        page = httpx.get(running.url("tidegate:9090", "/metrics")).text
        assert f"tidegate_decisions_total{{{admitted}}} 1.0" in page


def test_the_metrics_pages_that_prometheus_scrapes_are_there(
    running: Running, exposed: dict[str, frozenset[str]]
) -> None:
    ours = httpx.get(running.url("tidegate:9090", "/metrics")).text
    gauges = {name for name in exposed if f"\n{name}{{" in ours}
    assert {"tidegate_in_flight", "tidegate_free_ratio_observed", "tidegate_class_closed"} <= gauges
    for engine in ("engine-a:8000", "engine-b:8000"):
        page = httpx.get(running.url(engine, "/metrics")).text
        assert re.search(
            r'^vllm:kv_cache_usage_perc\{.*model_name="qwen-instruct"', page, re.MULTILINE
        )


def test_the_load_service_runs(running: Running) -> None:
    command: list[str] = list(running.stack["services"]["load"]["command"])
    command[command.index("--url") + 1] = running.url("envoy:8080", "")
    command[command.index("--rate") + 1] = "10"
    command[command.index("--duration") + 1] = "1"
    done = subprocess.run(
        [*_tidegate(), *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pay" in done.stdout


def test_every_process_still_runs(running: Running) -> None:
    ended = [name for name, each in running.processes.items() if each.poll() is not None]
    assert ended == []
