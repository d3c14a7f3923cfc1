"""Agent runs on the metrics page.

Rules this module keeps:

* Runs are counted, never named: callers make up their ids.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.agents.rules import Agents, Kind


class AgentCollector(Collector):
    """What agents do, at the moment of a scrape. What was refused is in the decisions, by reason."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges, and the counters that the runs keep themselves."""
        agents = self._agents
        calls = CounterMetricFamily(
            "tidegate_agent_calls",
            "Calls that were let in: of the root of a run, of its sub-agents, of no run.",
            labels=["kind"],
        )
        for kind in Kind:
            calls.add_metric([kind.value], agents.admitted_calls[kind])
        yield calls
        yield CounterMetricFamily(
            "tidegate_agent_runs", "Runs of which a call was let in.", agents.runs_begun
        )
        yield CounterMetricFamily(
            "tidegate_agent_merged_calls",
            "Calls that were answered with what an identical call of their run got.",
            agents.merged_calls,
        )
        yield CounterMetricFamily(
            "tidegate_agent_tokens_saved",
            "Tokens that engines would have read and written for those.",
            agents.tokens_saved,
        )
        yield GaugeMetricFamily(
            "tidegate_agent_runs_known", "Runs that are remembered.", len(agents.runs)
        )
        yield GaugeMetricFamily(
            "tidegate_agent_entries",
            "What is remembered of runs: runs, tasks and calls together.",
            agents.runs.entries,
        )
        yield GaugeMetricFamily(
            "tidegate_agent_calls_waiting",
            "Calls that wait for the tasks that they depend on.",
            agents.waiting,
        )
        yield GaugeMetricFamily(
            "tidegate_agent_calls_following",
            "Calls that wait for the answer of an identical one.",
            agents.following,
        )
