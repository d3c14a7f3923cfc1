"""The command as people type it: what it prints, with which exit code it ends, what it leaves."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from extproc.stand.ports import free_port

pytestmark = pytest.mark.e2e

COMMAND = [sys.executable, "-m", "extproc"]
SECONDS = 60
BAD = """\
classes:
  P0: {strict: true}
  P2:
    free_watermark: {close: 1.5, open: 0.2}
tenants:
  pay: {class: P9}
lisen: {}
"""


def tidegate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="tidegate-") as path:
        yield Path(path)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port where another process listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def written(
    directory: Path, *, processor: str | None = None, http: int | None = None, more: str = ""
) -> Path:
    """Write a configuration that can be served."""
    file = directory / "tidegate.yaml"
    processor = processor or f"unix://{directory}/processor.sock"
    file.write_text(
        f"listen: {{processor: '{processor}', http: '127.0.0.1:{http or free_port()}'}}\n"
        f"pools: {{qwen: {{endpoints: {{static: ['127.0.0.1:{free_port()}']}}}}}}\n{more}",
        encoding="utf-8",
    )
    return file


@asynccontextmanager
async def running(*arguments: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in the background; at the end it is gone, whatever the test did."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *map(str, arguments),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            await process.communicate()


async def line_with(process: asyncio.subprocess.Process, text: str) -> str:
    """Read the output up to the line that holds a text."""
    assert process.stdout is not None
    seen = ""
    async with asyncio.timeout(SECONDS):
        while line := (await process.stdout.readline()).decode():
            seen += line
            if text in line:
                return line
    raise AssertionError(f"ended without {text!r}:\n{seen}")


def test_it_knows_its_version() -> None:
    done = tidegate("--version")
    assert (done.returncode, done.stdout) == (
        0,
        f"tidegate {importlib.metadata.version('tidegate')}\n",
    )


class TestCheck:
    def test_a_good_configuration(self, tmp_path: Path) -> None:
        file = written(tmp_path)
        done = tidegate("check", file)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{file} is fine\n", "")

    def test_a_bad_one_names_line_path_value_and_reason(self, tmp_path: Path) -> None:
        file = tmp_path / "bad.yaml"
        file.write_text(BAD, encoding="utf-8")
        done = tidegate("check", file)
        assert (done.returncode, done.stdout) == (2, "")
        mark = "classes.P2.free_watermark.close = 1.5: Input should be less than or equal to 1"
        assert done.stderr.splitlines() == [
            f"{file} cannot be used:",
            f"  line 4: {mark}",
            "  line 7: lisen: there is no such key",
        ]

    def test_what_does_not_fit_together(self, tmp_path: Path) -> None:
        file = tmp_path / "bad.yaml"
        file.write_text("tenants:\n  pay: {class: P9}\n", encoding="utf-8")
        done = tidegate("check", file)
        assert done.returncode == 2
        assert "line 2: tenants.pay.class: there is no class P9" in done.stderr

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("a: [1", "line 1: yaml: expected ',' or ']'"),
            ("classes: {}\nclasses: {}\n", "line 2: yaml: the key classes is written twice"),
        ],
    )
    def test_what_is_no_yaml(self, tmp_path: Path, text: str, reason: str) -> None:
        file = tmp_path / "bad.yaml"
        file.write_text(text, encoding="utf-8")
        done = tidegate("check", file)
        assert done.returncode == 2
        assert reason in done.stderr

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        done = tidegate("check", tmp_path / "none.yaml")
        assert done.returncode == 2
        assert "No such file or directory" in done.stderr


class TestServe:
    def test_a_bad_configuration_starts_nothing(self, short: Path) -> None:
        file = written(short, more="fallback: {retry_after: 90s}\n")
        done = tidegate("serve", "--config", file)
        assert (done.returncode, done.stdout) == (2, "")
        assert "line 3: fallback.retry_after = '90s'" in done.stderr
        assert sorted(each.name for each in short.iterdir()) == ["tidegate.yaml"]

    def test_a_key_file_that_is_not_there_starts_nothing(self, short: Path) -> None:
        file = written(short, more="identity: {sources: [{api_key: {file: keys.yaml}}]}\n")
        done = tidegate("serve", "--config", file)
        assert done.returncode == 2
        assert f"{short}/keys.yaml cannot be used:" in done.stderr
        assert not (short / "processor.sock").exists()

    def test_a_taken_port_of_the_processor(self, short: Path, taken: int) -> None:
        address = f"127.0.0.1:{taken}"
        done = tidegate("serve", "--config", written(short, processor=address))
        assert done.returncode == 1
        assert f"cannot listen on {address}: it is taken" in done.stderr
        assert "change listen.processor" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_taken_port_of_the_pages(self, short: Path, taken: int) -> None:
        done = tidegate("serve", "--config", written(short, http=taken))
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1:{taken}: it is taken" in done.stderr
        assert "change listen.http" in done.stderr
        assert "Traceback" not in done.stderr

    async def test_a_socket_is_not_taken_from_who_listens_there(self, short: Path) -> None:
        path = short / "processor.sock"
        async with running("serve", "--config", written(short)) as first:
            await line_with(first, f"serving unix://{path}")
            inode = path.stat().st_ino
            other = short / "other"
            other.mkdir()
            second = await asyncio.to_thread(
                tidegate, "serve", "--config", written(other, processor=f"unix://{path}")
            )
            assert second.returncode == 1
            assert f"cannot listen on unix://{path}: it is taken" in second.stderr
            assert path.stat().st_ino == inode
            assert first.returncode is None

    async def test_a_socket_that_a_killed_process_left_is_taken_over(self, short: Path) -> None:
        file = written(short)
        async with running("serve", "--config", file) as killed:
            await line_with(killed, "serving")
            killed.kill()
            await killed.wait()
        assert (short / "processor.sock").exists()
        async with running("serve", "--config", file) as again:
            await line_with(again, "serving")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    async def test_being_stopped_is_no_error(self, short: Path, number: signal.Signals) -> None:
        async with running("serve", "--config", written(short)) as process:
            await line_with(process, "serving")
            process.send_signal(number)
            async with asyncio.timeout(10):
                assert await process.wait() == 0
        assert not (short / "processor.sock").exists()


class TestConsole:
    @pytest.mark.parametrize(
        ("options", "code", "told"),
        [
            ([], 2, "give a viewer's token with --token-file"),
            (["--token-file", "nowhere"], 2, "nowhere: No such file or directory"),
            (["--listen", "localhost"], 2, "give host:port"),
            (["--listen", "0.0.0.0:0"], 2, "say with --url where browsers find the console"),
            (["--certificate", "nowhere.pem"], 2, "No such file or directory"),
            (["--listen", "127.0.0.1:{taken}"], 1, "Address already in use"),
        ],
    )
    def test_what_cannot_be_served_is_said(
        self, tmp_path: Path, taken: int, options: list[str], code: int, told: str
    ) -> None:
        token = tmp_path / "token"
        token.write_text("a-token\n", encoding="utf-8")
        given = ["--token-file", str(token)] if options and options[0] != "--token-file" else []
        done = tidegate("console", *given, *(each.format(taken=taken) for each in options))
        assert (done.returncode, done.stdout) == (code, "")
        assert told in done.stderr
        assert "Traceback" not in done.stderr

    async def test_it_serves_without_a_tidegate_and_stops_at_a_signal(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("a-token\n", encoding="utf-8")
        options = ["--listen", "127.0.0.1:0", "--control", f"127.0.0.1:{free_port()}"]
        async with running("console", *options, "--token-file", token) as process:
            url = (await line_with(process, "console:")).split()[1]
            assert "<title>Tidegate</title>" in await asyncio.to_thread(fetch, url)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                assert await process.wait() == 0


class TestUp:
    async def test_it_serves_and_leaves_nothing_behind(self) -> None:
        async with running("up", "--port", "0") as process:
            url = (await line_with(process, "clients")).split()[1]
            console = (await line_with(process, "console")).split()[1]
            metrics = (await line_with(process, "metrics")).split()[1]
            files = await folder_of(process)
            assert files.is_dir()
            children = psutil.Process(process.pid).children(recursive=True)
            names = {" ".join(child.cmdline()) for child in children}
            assert len(children) == 5, names

            reply = await asyncio.to_thread(chat, url, "marketing")
            assert reply["choices"][0]["finish_reason"] == "length"
            await line_with(process, "P2")  # the live line has seen it
            assert "<title>Tidegate</title>" in await asyncio.to_thread(fetch, console)
            page = await asyncio.to_thread(fetch, metrics)
            assert 'tidegate_decisions_total{class="P2"' in page

            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(30):
                assert await process.wait() == 0
        _, alive = psutil.wait_procs(children, timeout=1)
        assert alive == []
        assert not files.exists()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    async def test_however_it_is_stopped_nothing_is_left(self, number: signal.Signals) -> None:
        """A terminal that is closed (SIGHUP) cannot reach the children: they have sessions of their own."""
        async with running("up", "--port", "0") as process:
            await line_with(process, "clients")
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            async with asyncio.timeout(30):
                assert await process.wait() == 0
        _, alive = psutil.wait_procs(children, timeout=1)
        for child in alive:
            child.kill()
        assert alive == []

    async def test_a_taken_port_starts_nothing(self, taken: int) -> None:
        done = await asyncio.to_thread(tidegate, "up", "--port", str(taken))
        assert (done.returncode, done.stdout) == (1, "")
        assert f"port {taken} is taken: choose another with --port" in done.stderr

    async def test_a_bad_configuration_starts_nothing(self, tmp_path: Path) -> None:
        file = tmp_path / "bad.yaml"
        file.write_text(BAD, encoding="utf-8")
        done = await asyncio.to_thread(tidegate, "up", "--port", "0", "--config", str(file))
        assert (done.returncode, done.stdout) == (2, "")
        assert "line 7: lisen: there is no such key" in done.stderr

    @pytest.mark.parametrize("engine", ["127.0.0.1:{}", "http://[::1", "https://127.0.0.1:{}"])
    async def test_an_engine_that_does_not_answer(self, engine: str) -> None:
        address = engine.format(free_port())
        done = await asyncio.to_thread(tidegate, "up", "--port", "0", "--engine", address)
        assert done.returncode in (1, 2)
        assert address.removeprefix("http://") in done.stderr
        assert "Traceback" not in done.stderr

    async def test_a_process_that_dies_ends_it_all(self) -> None:
        async with running("up", "--port", "0") as process:
            files = await folder_of(process)
            children = psutil.Process(process.pid).children(recursive=True)
            (victim,) = (child for child in children if "serve" in child.cmdline())
            os.kill(victim.pid, signal.SIGKILL)
            await line_with(process, "tidegate ended with code -9")
            async with asyncio.timeout(30):
                assert await process.wait() == 1
        _, alive = psutil.wait_procs(children, timeout=1)
        assert alive == []
        assert (files / "tidegate.log").exists(), "the logs, which tell why, stay"
        shutil.rmtree(files)


async def folder_of(process: asyncio.subprocess.Process) -> Path:
    return Path((await line_with(process, "files")).split()[1])


def chat(url: str, tenant: str) -> Any:
    body = {"model": "qwen-72b-instruct", "messages": [{"role": "user", "content": "hello"}]}
    call = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps({**body, "max_tokens": 4}).encode(),
        headers={"content-type": "application/json", "x-tenant-id": tenant},
    )
    with urllib.request.urlopen(call, timeout=30) as reply:
        return json.load(reply)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return str(reply.read().decode())


class TestEnvoy:
    def test_it_prints_a_configuration(self, tmp_path: Path) -> None:
        done = tidegate("envoy", "--config", written(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        printed = yaml.safe_load(done.stdout)
        clusters = [each["name"] for each in printed["static_resources"]["clusters"]]
        assert clusters == ["tidegate", "tidegate-pool-qwen"]

    def test_a_configuration_without_a_pool(self, tmp_path: Path) -> None:
        file = tmp_path / "empty.yaml"
        file.write_text("", encoding="utf-8")
        done = tidegate("envoy", "--config", file)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{file} cannot be used:" in done.stderr
        assert "pool" in done.stderr
