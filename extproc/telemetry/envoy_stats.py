"""Reads from Envoys how many calls the valve refused, exactly: a counter, not a record for each.

Rules this module keeps:

* Each Envoy is read by itself; what one does (hang, vanish, answer nonsense) concerns no other.
* What an Envoy had counted before we came is not ours; one that came after us, or was started anew,
  starts from nothing.
* Only pools, classes and reasons that are configured count: an Envoy may have another configuration.
* Of several workers, which all read the same Envoys, those count that an Envoy listens to.
* The log has a line when an Envoy becomes unreadable, and one when it is readable again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc import contract
from extproc.core.reasons import Reason

log = logging.getLogger(__name__)

INTERVAL, TIMEOUT = 0.5, 1.0
"""Seconds."""
MAX_PAGE = 1 << 20
"""Bytes."""
_SAMPLE = f"envoy_{contract.VALVE_STATS}_refused"

Key = tuple[str, str, Reason]
Heard = Callable[[str, str, Reason, int], None]


class EnvoyStats:
    """Reads the counters of some Envoys; ``heard`` is told pool, class, reason and how many more.

    ``mine`` says whether that is for us to count.
    """

    def __init__(
        self,
        addresses: Collection[str],
        heard: Heard,
        *,
        pools: Collection[str],
        classes: Collection[str],
        mine: Callable[[], bool] = lambda: True,
    ) -> None:
        self._addresses = tuple(addresses)
        self._heard = heard
        self._pools = frozenset(pools)
        self._classes = frozenset(classes)
        self._mine = mine

    async def run(self) -> None:
        """Read until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            for address in self._addresses:
                tasks.create_task(self._follow(session, address))

    async def _follow(self, session: aiohttp.ClientSession, address: str) -> None:
        url = f"http://{address}/stats/prometheus?filter=^{contract.VALVE_STATS}[.]"
        counter, readable = Counted(), True
        while True:
            try:
                async with session.get(url) as response:
                    response.raise_for_status()
                    page = (await response.content.read(MAX_PAGE)).decode()
                counts = read(page)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                counter.away()
                if readable:
                    log.warning(
                        "an Envoy's counts cannot be read; what its valve refuses is not counted",
                        extra={"envoy": address, "error": type(error).__name__},
                    )
                readable = False
            else:
                if not readable:
                    log.info("an Envoy's counts can be read again", extra={"envoy": address})
                readable = True
                for (pool, name, reason), more in counter.more(counts).items():
                    if self._mine() and pool in self._pools and name in self._classes:
                        self._heard(pool, name, reason, more)
            await asyncio.sleep(INTERVAL)


class Counted:
    """What one Envoy had counted when it was last read."""

    def __init__(self) -> None:
        self._last: dict[Key, int] | None = None

    def away(self) -> None:
        """It cannot be read. If it never was, whatever it will have counted is since we are here."""
        if self._last is None:
            self._last = {}

    def more(self, counts: Mapping[Key, int]) -> dict[Key, int]:
        """Return what it has counted since the last time; less than then: it was started anew."""
        last, self._last = self._last, dict(counts)
        if last is None:
            return {}
        anew = any(counts.get(key, 0) < count for key, count in last.items())
        before = {} if anew else last
        more = {key: count - before.get(key, 0) for key, count in counts.items()}
        return {key: count for key, count in more.items() if count}


def read(page: str) -> dict[Key, int]:
    """Return the counts of a page of Envoy's, in Prometheus' text format.

    Raises:
        ValueError: it is something else.
    """
    counts: dict[Key, int] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            # The parser tells counters by a name that ends in _total, which Envoy's do not.
            if sample.name.removesuffix("_total") == _SAMPLE:
                labels = sample.labels
                reason = _REASONS.get(labels.get("reason", ""))
                if reason is not None:
                    counts[labels.get("pool", ""), labels.get("class", ""), reason] = int(
                        sample.value
                    )
    return counts


_REASONS = {each.value: each for each in contract.VALVE_REASONS}
