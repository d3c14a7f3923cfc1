"""Counters by tenant: the busiest by name, the rest together.

Rules this module keeps:

* At most `NAMED` tenants are named, and memory is bounded, whatever names callers invent.
* The sum over all series never falls: what a tenant that is no longer named has counted is added to
  the rest, and one that is named again starts at 0.
* Who is named changes seldom: a place is taken over by a tenant with twice the calls, once in `WINDOW`
  calls of tenants that are not named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.controller import Action
from extproc.core.records import Decided, Ended

NAMED = 20
WINDOW = 4096
"""Calls of tenants that are not named, after which the places are given anew."""
OTHER = "(other)"
"""The label of the rest; brackets, so that it is hardly anybody's name."""


class _Counts:
    """What is counted of one tenant; ``before``: its calls when the places were last given."""

    __slots__ = ("before", "output", "prompt", "verdicts")

    def __init__(self) -> None:
        self.verdicts = dict.fromkeys((Action.ADMIT, Action.SHED, Action.REJECT), 0)
        self.prompt = 0
        self.output = 0
        self.before = 0

    @property
    def calls(self) -> int:
        return sum(self.verdicts.values())

    def add(self, other: _Counts) -> None:
        for verdict, number in other.verdicts.items():
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + number
        self.prompt += other.prompt
        self.output += other.output


class TenantCollector(Collector):
    """Counts calls and tokens by tenant."""

    def __init__(self) -> None:
        self._named: dict[str, _Counts] = {}
        self._rest = _Counts()
        self._window: Counter[str] = Counter()
        self._seen = 0

    def decided(self, record: Decided) -> None:
        """Count a verdict."""
        counts = self._named.get(record.tenant) or self._meet(record.tenant)
        action = record.verdict.action
        counts.verdicts[action] = counts.verdicts.get(action, 0) + 1

    def ended(self, record: Ended) -> None:
        """Count the tokens that an engine reported."""
        counts = self._named.get(record.tenant, self._rest)
        counts.prompt += record.prompt_tokens or 0
        counts.output += record.completion_tokens or 0

    def collect(self) -> Iterable[Metric]:
        """Yield the counters."""
        decisions = CounterMetricFamily(
            "tidegate_tenant_decisions",
            f"Verdicts by tenant: the {NAMED} busiest, and {OTHER}.",
            labels=["tenant", "verdict"],
        )
        tokens = CounterMetricFamily(
            "tidegate_tenant_tokens",
            f"Tokens of admitted calls, as the engines reported them: the {NAMED} busiest tenants, "
            f"and {OTHER}.",
            labels=["tenant", "kind"],
        )
        for name, counts in (*self._named.items(), (OTHER, self._rest)):
            for verdict, number in counts.verdicts.items():
                decisions.add_metric([name, verdict.value], number)
            tokens.add_metric([name, "prompt"], counts.prompt)
            tokens.add_metric([name, "output"], counts.output)
        yield from (decisions, tokens)

    def _meet(self, tenant: str) -> _Counts:
        """Return where a tenant without a place counts."""
        if tenant == OTHER:
            return self._rest
        if len(self._named) < NAMED:
            return self._named.setdefault(tenant, _Counts())
        self._window[tenant] += 1
        self._seen += 1
        if self._seen >= WINDOW:
            self._give_places()
        return self._named.get(tenant, self._rest)

    def _give_places(self) -> None:
        """Give the places of the idlest to those that were twice as busy since the last time."""
        idlest = sorted(self._named.items(), key=lambda item: item[1].calls - item[1].before)
        busiest = self._window.most_common(NAMED)
        for (old, counts), (new, calls) in zip(idlest, busiest, strict=False):
            if calls < 2 * (counts.calls - counts.before + 1):
                break
            self._rest.add(self._named.pop(old))
            self._named[new] = _Counts()
        for counts in self._named.values():
            counts.before = counts.calls
        self._window.clear()
        self._seen = 0
