"""The parent of several workers: starts them, starts those anew that end, stops them all.

Rules this module keeps:

* It decides nothing and touches no call: Envoy talks to the workers.
* A worker that ends before all have been ready ends everything: what is wrong is wrong for all. After
  that one that ends, or hangs, is replaced; the others go on.
* A stop is passed on to all, who drain at the same time; none outlives the parent, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence

import aiohttp
from aiohttp import web

from extproc.edge.server import CannotListenError
from extproc.telemetry.http import pages
from extproc.workers.page import merged
from extproc.workers.worker import SECRET_BYTES

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a worker is started anew; doubled while workers do not last `STEADY` seconds."""
STEADY = 10.0
LOOK = 2.0
"""Seconds between two looks at a worker; one that does not answer `PATIENCE` times hangs."""
PATIENCE = 5
STOP_SECONDS = 45.0
"""How long a worker may take to drain and to settle; then it is killed."""
_PAGE_SECONDS = 2.0
_READY_SECONDS = 0.05

Command = Callable[[int, int], Sequence[str]]
"""Makes the command of a worker, from its number and the descriptor on which it serves its pages."""


class WorkerEndedError(RuntimeError):
    """A worker ended before all were ready; its log has said why. ``code`` is its exit code."""

    def __init__(self, number: int, code: int) -> None:
        super().__init__(f"worker {number} ended with code {code}")
        self.code = code


class Supervisor:
    """See the module's rules.

    Args:
        count: how many workers there are.
        command: how each is started.
        http: where the pages of all are, ``host:port``.
    """

    def __init__(self, count: int, command: Command, http: str) -> None:
        self._command = command
        self._http = http
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._workers = [Worker(number) for number in range(1, count + 1)]
        self._stop = asyncio.Event()
        self._complete = False

    async def run(self, stop: asyncio.Event, started: Callable[[], None]) -> None:
        """Keep the workers until ``stop`` is set; ``started`` is called when all are ready.

        Raises:
            CannotListenError: the address of the pages cannot be bound.
            WorkerEndedError: a worker could not start.
        """
        self._stop = stop
        try:
            async with (
                self._pages(),
                aiohttp.ClientSession() as session,
                asyncio.TaskGroup() as tasks,
            ):
                looking = [tasks.create_task(self._watch(session))]
                for each in self._workers:
                    tasks.create_task(self._keep(each))
                looking.append(tasks.create_task(self._await_ready(session, started)))
                await stop.wait()
                for task in looking:
                    task.cancel()
        finally:
            for each in self._workers:
                each.pages.close()

    def reload(self) -> None:
        """Have every worker go over to the configuration file as it is now.

        One that has only been started may not know the signal, and end; it comes again.
        """
        for each in self._workers if self._complete else ():
            if each.process is not None:
                each.process.send_signal(signal.SIGHUP)

    async def _keep(self, worker: Worker) -> None:
        """Run a worker, again and again, until a stop is asked for."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        while not self._stop.is_set():
            began = loop.time()
            code = await self._run(worker)
            if self._stop.is_set():
                return
            if not self._complete:
                raise WorkerEndedError(worker.number, code)
            worker.restarts += 1
            log.error("a worker has ended", extra={"worker": worker.number, "code": code})
            pause = FIRST_PAUSE if loop.time() - began > STEADY else min(LONGEST_PAUSE, 2 * pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()

    async def _run(self, worker: Worker) -> int:
        """Run a worker until it ends, or until it has drained after a stop; return its exit code."""
        descriptor = worker.pages.fileno()
        process = await asyncio.create_subprocess_exec(
            *self._command(worker.number, descriptor), stdin=PIPE, pass_fds=(descriptor,)
        )
        worker.process = process
        ended = asyncio.ensure_future(process.wait())
        asked = asyncio.ensure_future(self._stop.wait())
        try:
            if process.stdin is not None:  # it stays open for as long as we live
                process.stdin.write(self._secret)
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_SECONDS):
                        return await asyncio.shield(ended)
        finally:
            worker.process = None
            asked.cancel()
            if not ended.done():
                process.kill()
            code = await asyncio.shield(ended)
        return code

    async def _await_ready(
        self, session: aiohttp.ClientSession, started: Callable[[], None]
    ) -> None:
        waiting = list(self._workers)
        while waiting:
            if not await waiting[-1].is_ready(session):
                await asyncio.sleep(_READY_SECONDS)
                continue
            waiting.pop()
        self._complete = True
        started()

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """Kill workers that hang, so that they are started anew."""
        missed = dict.fromkeys(self._workers, 0)
        while True:
            await asyncio.sleep(LOOK)
            for each in self._workers:
                alive = await each.ask(session, "/healthz") is not None
                missed[each] = 0 if alive or each.process is None else missed[each] + 1
                if missed[each] >= PATIENCE and each.process is not None:
                    log.error("a worker hangs", extra={"worker": each.number})
                    each.process.send_signal(signal.SIGKILL)
                    missed[each] = 0

    @contextlib.asynccontextmanager
    async def _pages(self) -> AsyncIterator[None]:
        """Serve the pages of all."""
        async with aiohttp.ClientSession() as session:

            async def metrics() -> bytes:
                asked = [each.ask(session, "/metrics") for each in self._workers]
                told = dict(enumerate(await asyncio.gather(*asked), start=1))
                page = merged({number: each for number, each in told.items() if each is not None})
                return (page + self._own(told)).encode()

            def ready() -> bool:
                running = any(each.process is not None for each in self._workers)
                return self._complete and running and not self._stop.is_set()

            runner = web.AppRunner(pages(metrics=metrics, ready=ready), access_log=None)
            await runner.setup()
            host, _, port = self._http.rpartition(":")
            try:
                try:
                    await web.TCPSite(runner, host.strip("[]"), int(port)).start()
                except OSError as error:
                    raise CannotListenError(self._http, "listen.http") from error
                yield
            finally:
                await runner.cleanup()

    def _own(self, told: dict[int, str | None]) -> str:
        lines = [
            "# HELP tidegate_worker_up 1 where a worker of this Tidegate answers.",
            "# TYPE tidegate_worker_up gauge",
            *(
                f'tidegate_worker_up{{worker="{number}"}} {int(page is not None)}'
                for number, page in told.items()
            ),
            "# HELP tidegate_worker_restarts_total Times that a worker was started anew.",
            "# TYPE tidegate_worker_restarts_total counter",
            *(
                f'tidegate_worker_restarts_total{{worker="{each.number}"}} {each.restarts}'
                for each in self._workers
            ),
        ]
        return "".join(f"{line}\n" for line in lines)


class Worker:
    """One worker, whichever process it is now.

    Attributes:
        process: it runs, or None.
        pages: where it answers the parent. The socket is the parent's: it outlives the process, so
            that who asks while a new one starts is answered by that.
        restarts: how often it was started anew.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.restarts = 0
        self.pages = socket.create_server(("127.0.0.1", 0), backlog=16)
        self._url = f"http://127.0.0.1:{self.pages.getsockname()[1]}"

    async def is_ready(self, session: aiohttp.ClientSession) -> bool:
        """Say whether it takes calls."""
        return await self.ask(session, "/readyz") is not None

    async def ask(self, session: aiohttp.ClientSession, page: str) -> str | None:
        """Return a page of it, or None where it does not answer with one."""
        if self.process is None:
            return None
        try:
            async with asyncio.timeout(_PAGE_SECONDS), session.get(self._url + page) as reply:
                return await reply.text() if reply.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None
