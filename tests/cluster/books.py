"""What calls must have come to, by their verdicts and by the ledger."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from tests.cluster.calls import Calls
from tests.cluster.stand import Cluster, ledger

FULL = 0.88
"""Of the cache in use: P2 is closed, P1 and P0 are open."""
JUDGED = {
    ("pay", "admit", "admitted"),
    ("service", "admit", "admitted"),
    ("marketing", "shed", "kv_watermark"),
}
CHARGES = "SELECT outcome, estimated, count(*), sum(used) FROM transactions WHERE kind = 'charge' GROUP BY 1, 2"


class Books:
    """What the ledger has grown by since it was last looked at."""

    def __init__(self, it: Cluster) -> None:
        self._it = it
        self._before: dict[tuple[str, bool], tuple[int, int]] = {}

    async def grown(self) -> dict[tuple[str, bool], tuple[int, int]]:
        """Return charges and their tokens, by outcome and whether they are estimates."""
        await self._it.settled()
        pending = ledger(self._it, "SELECT count(*) FROM holds WHERE state = 'pending'")
        assert next(pending)[0] == 0
        now = {
            (outcome, bool(estimated)): (int(count), int(used))
            for outcome, estimated, count, used in ledger(self._it, CHARGES)
        }
        was, self._before = self._before, now
        return {
            key: (count - was.get(key, (0, 0))[0], used - was.get(key, (0, 0))[1])
            for key, (count, used) in now.items()
            if (count, used) != was.get(key)
        }


def judged(calls: Calls) -> set[tuple[str, str, str]]:
    return {(call.tenant, call.verdict, call.reason) for call in calls.each if call.verdict}


def exact(calls: Calls) -> dict[tuple[str, bool], tuple[int, int]]:
    """Return what the ledger must say of calls that were all let in, answered and told of."""
    return {("completed", False): (len(calls.answered), sum(c.tokens for c in calls.answered))}


def told(what: str, calls: Calls, grown: Any) -> None:
    failed = dict(Counter((call.status, call.problem) for call in calls.failed))
    sys.stdout.write(
        f"{what}: {len(calls.each)} calls, {len(calls.answered)} answered by engines, "
        f"{len(calls.unjudged)} unjudged, failed {failed}, charged {grown}\n"
    )  # pytest -rP shows it
