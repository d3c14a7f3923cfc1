"""What another worker brings, where a machine has not the cores: each worker is held to a share of one.

Rules this module keeps:

* Every worker has the same quota of CPU time, by a control group of its own. What they do together then
  grows with their number as it would with cores, as long as Envoy and the load find theirs free.
* The load is a closed loop, wide enough to keep all of them busy; every answer is a refusal of Tidegate's.
* Without a quota the workers share the machine with Envoy, the engine and the load: that is told beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psutil

from bench.measure import Bench, cpu_seconds
from bench.stand import SHED, Builder, Gateway, serve
from bench.tables import short, table
from extproc.sim.loadgen.load import Kind
from extproc.stand.ports import free_port
from extproc.stand.redis import redis_command

COUNTS = (1, 2, 4)
FREE = (1, 2)
"""How many workers run without a quota."""
WIDTH = 96
"""Calls at once."""
PERIOD = 10_000
"""Microseconds over which a quota is counted."""
_GROUPS = Path("/sys/fs/cgroup")


class NoQuotaError(RuntimeError):
    """Control groups cannot be made here."""


async def measure(directory: Path, rounds: int, seconds: float, share: float) -> str:
    """Return the table.

    Raises:
        NoQuotaError: this takes root, and control groups that may be written.
    """
    bench = Bench(time.monotonic, Random(1))  # noqa: S311 (when requests are sent)
    shares = [(count, share) for count in COUNTS] + [(count, 1.0) for count in FREE]
    rows, first = [], dict[float, float]()
    for number, (count, most) in enumerate(shares):
        async with Builder(directory, free_port(), 2) as build:
            gateway, pids = await _started(build, number, count)
            used, rates, client = [], [], psutil.Process()
            envoy = psutil.Process(gateway.processes[-1])
            processes = [psutil.Process(pid) for pid in pids]
            watched = [*processes, envoy, client]
            with held(pids, most):
                await bench.saturation(gateway, SHED, WIDTH, 1.0)
                for _ in range(rounds):
                    before = [cpu_seconds(each) for each in watched]
                    rates.append(await bench.saturation(gateway, SHED, WIDTH, seconds))
                    used.append(
                        [
                            (cpu_seconds(each) - was) / seconds
                            for each, was in zip(watched, before, strict=True)
                        ]
                    )
        rate = statistics.median(rates)
        means = [statistics.mean(each) for each in zip(*used, strict=True)]
        own = means[:-2]
        first.setdefault(most, rate)
        rows.append(
            [
                f"{count}, " + ("not held" if most == 1.0 else f"{most:.0%} of a core each"),
                short(rate),
                f"{rate / first[most]:.2f} ×",
                " ".join(f"{each:.2f}" for each in own),
                short(sum(own) / statistics.mean(rates) * 1e6),
                f"{means[-2]:.2f}",
                f"{means[-1]:.2f}",
            ]
        )
    headings = (
        "workers", "refusals/s", "of one", "cores, each", "CPU µs a call", "Envoy's cores", "load's"
    )  # fmt: skip
    return table(headings, rows)


async def _started(build: Builder, number: int, count: int) -> tuple[Gateway, list[int]]:
    """Start a Tidegate of so many workers; return their process ids, too."""
    more: dict[str, dict[str, Any]] = {}
    if count > 1:
        socket = build.directory / f"r{number}.sock"
        await build.start(f"redis{number}", redis_command(socket))
        more = {"listen": {"workers": count}, "state": {"redis": f"unix://{socket}"}}
    gateway = await build.gateway(f"t{number}", serve, {SHED: Kind.FALLBACK}, more=more)
    parent = psutil.Process(gateway.processor)
    return gateway, [each.pid for each in parent.children()] if count > 1 else [parent.pid]


@contextmanager
def held(pids: Iterable[int], share: float) -> Iterator[None]:
    """Hold each of these processes to a share of a core; 1 is not held."""
    groups: list[Path] = []
    try:
        if share < 1:
            groups.extend(_group(pid, share) for pid in pids)
        yield
    finally:
        for group in groups:
            _dissolve(group)


def _group(pid: int, share: float) -> Path:
    first = (_GROUPS / "cpu") if (_GROUPS / "cpu").is_dir() else _GROUPS
    group = first / f"tidegate-bench-{pid}"
    try:
        group.mkdir()
        if first == _GROUPS:
            (group / "cpu.max").write_text(f"{round(share * PERIOD)} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(round(share * PERIOD)))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise NoQuotaError(f"workers cannot be held to a share of a core: {error}") from error
    return group


def _dissolve(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()
