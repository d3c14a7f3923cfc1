"""``tidegate emulate`` as a process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from typer.testing import CliRunner

from extproc.cli import app

COMMAND = [sys.executable, "-c", "from extproc.cli import main; main()", "emulate"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_prints_its_url_and_stops_cleanly(number: signal.Signals) -> None:
    options = ["--port", "0", "--model", "m", "--blocks", "64", "--faults", '{"kv_usage": 0.5}']
    with subprocess.Popen(
        [*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as reply:
            assert json.load(reply)["data"][0]["id"] == "m"
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as reply:
            page = reply.read().decode()
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "", "")
    assert 'num_gpu_blocks="64"' in page
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5' in page


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--blocks", "4", "--max-model-len", "99999"], "max_model_len must be 2..48"),
        (["--faults", "{"], "Expecting property name"),
        (["--faults", '{"odd": 1}'], "no such fault: odd"),
    ],
)
def test_bad_options_exit_with_2(options: list[str], why: str) -> None:
    result = CliRunner().invoke(app, ["emulate", *options])
    assert result.exit_code == 2
    assert why in result.stderr


def test_port_in_use_exits_with_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["emulate", "--port", str(port)])
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
