"""The parent of workers: with stand-ins that do what a test asks of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.edge.server import CannotListenError
from extproc.stand.ports import free_port
from extproc.workers import supervisor
from extproc.workers.supervisor import Supervisor, WorkerEndedError

STUB = Path(__file__).with_name("stub.py")


class Parent:
    """A supervisor of two, and its folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.stop, self.started = asyncio.Event(), asyncio.Event()
        self.supervisor = Supervisor(2, self.command, f"127.0.0.1:{port}")

    def command(self, number: int, pages: int) -> list[str]:
        return [sys.executable, str(STUB), str(number), str(pages), str(self.folder)]

    async def run(self) -> None:
        await self.supervisor.run(self.stop, self.started.set)

    def ask(self, number: int, what: str) -> None:
        (self.folder / f"do-{number}").write_text(what)

    def pid(self, number: int) -> int:
        return int((self.folder / f"pid-{number}").read_text())

    async def page(self, path: str) -> tuple[int, str]:
        def fetch() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as reply:
                    return reply.status, reply.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(fetch)

    async def until(self, wanted: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(20):
            while not await wanted():  # noqa: ASYNC110 (it is another process's)
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Parent]:
    parent = Parent(folder, free_port())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(parent.run())
        async with asyncio.timeout(20):
            await parent.started.wait()
        yield parent
        parent.stop.set()


async def test_all_are_told_the_same_secret_and_stop_together(tmp_path: Path) -> None:
    async with running(tmp_path) as parent:
        secrets = {(tmp_path / f"secret-{number}").read_bytes() for number in (1, 2)}
        assert [len(each) for each in secrets] == [32]
        assert await parent.page("/readyz") == (200, "ready\n")
        _, page = await parent.page("/metrics")
        assert page.splitlines() == [
            "# HELP t_calls Calls.",
            "# TYPE t_calls counter",
            't_calls{worker="1"} 1',
            't_calls{worker="2"} 2',
            "# HELP tidegate_worker_up 1 where a worker of this Tidegate answers.",
            "# TYPE tidegate_worker_up gauge",
            'tidegate_worker_up{worker="1"} 1',
            'tidegate_worker_up{worker="2"} 1',
            "# HELP tidegate_worker_restarts_total Times that a worker was started anew.",
            "# TYPE tidegate_worker_restarts_total counter",
            'tidegate_worker_restarts_total{worker="1"} 0',
            'tidegate_worker_restarts_total{worker="2"} 0',
        ]
    for number in (1, 2):
        assert (tmp_path / f"drained-{number}").exists()


async def test_one_that_dies_is_started_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as parent:
        first, other = parent.pid(1), parent.pid(2)
        os.kill(first, signal.SIGKILL)

        async def again() -> bool:
            _, page = await parent.page("/metrics")
            return 'restarts_total{worker="1"} 1' in page and page.count("worker_up{worker=") == 2

        await parent.until(again)

        async def both() -> bool:
            _, page = await parent.page("/metrics")
            return page.count("t_calls{") == 2

        await parent.until(both)
        assert parent.pid(1) != first
        assert parent.pid(2) == other


async def test_all_are_told_to_take_over_the_configuration(tmp_path: Path) -> None:
    async with running(tmp_path) as parent:
        parent.supervisor.reload()

        async def told() -> bool:
            return all((tmp_path / f"reloaded-{number}").exists() for number in (1, 2))

        await parent.until(told)


async def test_one_that_hangs_is_killed_and_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOOK": 0.05, "PATIENCE": 2, "_PAGE_SECONDS": 0.2}.items():
        monkeypatch.setattr(supervisor, name, value)
    async with running(tmp_path) as parent:
        hanging = parent.pid(2)
        os.kill(hanging, signal.SIGSTOP)

        async def replaced() -> bool:
            return parent.pid(2) != hanging

        await parent.until(replaced)


async def test_one_that_does_not_drain_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.2)
    (tmp_path / "do-2").write_text("stay")
    async with running(tmp_path) as parent:
        stubborn = parent.pid(2)
    with pytest.raises(ProcessLookupError):
        os.kill(stubborn, 0)
    assert (tmp_path / "drained-1").exists()


async def test_while_it_stops_nothing_is_ready(tmp_path: Path) -> None:
    (tmp_path / "do-1").write_text("stay")
    async with running(tmp_path) as parent:
        parent.stop.set()
        assert await parent.page("/readyz") == (503, "draining\n")
        os.kill(parent.pid(1), signal.SIGKILL)


async def test_one_that_cannot_start_ends_all(tmp_path: Path) -> None:
    parent = Parent(tmp_path, free_port())
    parent.ask(2, "exit 2")
    with pytest.raises(ExceptionGroup) as raised:
        await parent.run()
    (error,) = raised.value.exceptions
    assert isinstance(error, WorkerEndedError)
    assert (str(error), error.code) == ("worker 2 ended with code 2", 2)
    assert not parent.started.is_set()
    if (tmp_path / "pid-1").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(parent.pid(1), 0)


async def test_a_taken_address_starts_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as parent:
        other = Parent(tmp_path / "other", parent.port)
        with pytest.raises(CannotListenError, match=r"change listen\.http"):
            await other.run()
