"""The files of ``compose/`` as their readers see them, and what Tidegate really exposes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from extproc.config import load
from extproc.core.agents.rules import Agents, Kind, Policy
from extproc.core.breaker import Breaker, Key, Rules
from extproc.core.breaker import State as BreakerState
from extproc.core.capacity import Freshness, Load, Pool, PoolLimits, Reading
from extproc.core.classes import ServiceClass
from extproc.core.controller import Action, Line, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.queue import Queue, QueueLimits
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.tickets import Tickets
from extproc.edge.faults import FaultDesk
from extproc.telemetry.agents import AgentCollector
from extproc.telemetry.breaker import BreakerCollector
from extproc.telemetry.faults import FaultCollector
from extproc.telemetry.ledger import LedgerCollector
from extproc.telemetry.metrics import LineCollector, Metrics, PoolCollector
from extproc.telemetry.spending import MeterCollector, SharingCollector

ROOT = Path(__file__).resolve().parents[2]
_VARIABLE = re.compile(r"(?<!\$)\$\{(\w+):-([^}]*)\}")


@pytest.fixture(scope="session")
def directory() -> Path:
    return ROOT / "compose"


@pytest.fixture(scope="session")
def stack(directory: Path) -> dict[str, Any]:
    """docker-compose.yaml as Compose reads it where no variable is set."""
    text = (directory / "docker-compose.yaml").read_text(encoding="utf-8")
    text = _VARIABLE.sub(lambda match: match[2], text)
    assert not re.search(r"(?<!\$)\$(?!\$)", text), "a variable without a default"
    return dict(yaml.safe_load(text.replace("$$", "$")))


@pytest.fixture(scope="session")
def rules(directory: Path) -> list[dict[str, Any]]:
    data = yaml.safe_load((directory / "prometheus" / "rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in data["groups"] for rule in group["rules"]]


@pytest.fixture(scope="session")
def exposed() -> dict[str, frozenset[str]]:
    """Names and labels of every sample on Tidegate's metrics page, after one call of each kind."""
    service_class = ServiceClass("P0", 0)
    pool = Pool("model", PoolLimits(8, stale_after=1.0, unknown_after=30.0), [service_class])
    pool.join("engine:8000")
    pool.observe("engine:8000", Reading(0.5, 100, 16, 1, 0, 0), read_at=0.0, now=0.0)
    metrics = Metrics(["*"], ["P0", "P1", "P2"])
    metrics.registry.register(PoolCollector({"model": pool}, lambda: 0.0))
    line = Line(Queue(QueueLimits(8, 1024), [service_class]), Tickets(b"0" * 16, window=60.0), 0.0)
    metrics.registry.register(LineCollector({"model": line}, [service_class]))
    metrics.waited("model", "P0", WaitEnd.ADMITTED, 0.1)
    breaker = Breaker(Rules(sustain=0.0))
    for tokens in [100] * 60 + [2000] * 20:
        breaker.ended(Key("model", "pay", ""), tokens, admitted_at=0.0, now=0.0)
    metrics.registry.register(BreakerCollector(breaker))
    metrics.registry.register(AgentCollector(Agents(Policy())))
    metrics.registry.register(FaultCollector(FaultDesk().counts))
    outbox = SimpleNamespace(up=True, dropped=0, refused=0, backlog=0, used=0.0, lag=0.0)
    metrics.registry.register(LedgerCollector(outbox))
    link = SimpleNamespace(up=True, round_trips=0)
    shared = SimpleNamespace(link=link, members=SimpleNamespace(count=1))
    metrics.registry.register(SharingCollector(shared, SimpleNamespace(forwarded=0)))
    held = SimpleNamespace(pending=(), buckets=(), holds=SimpleNamespace(held_in_all=0))
    metrics.registry.register(MeterCollector(held))
    verdict = Verdict(Action.ADMIT, Reason.ADMITTED, Load(0.5, 1.0, 0, 1))
    metrics.decided(
        Decided("1", "", "model", "chat", "pay", "P0", "", 10, 20, verdict, seconds=1e-4)
    )
    metrics.ended(Ended("1", "pay", "P0", "model", Outcome.COMPLETED, 10, 20, seconds=1.0))
    return {
        sample.name: frozenset(sample.labels)
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


@pytest.fixture(scope="session")
def series(
    exposed: Mapping[str, frozenset[str]], rules: list[dict[str, Any]]
) -> dict[str, frozenset[str]]:
    """Everything that a query may ask for, with the labels that it has in Prometheus."""
    scraped = {name: labels | {"job", "instance"} for name, labels in exposed.items()}
    recorded = {
        rule["record"]: frozenset(rule["record"].partition(":")[0].split("_"))
        for rule in rules
        if "record" in rule
    }
    return {**scraped, **recorded, "up": frozenset({"job", "instance"})}


@pytest.fixture(scope="session")
def label_values(directory: Path) -> dict[str, frozenset[str]]:
    """The closed sets of values that labels take."""
    scrapes = yaml.safe_load((directory / "prometheus" / "prometheus.yaml").read_text())
    return {
        "verdict": frozenset(Action),
        "reason": frozenset(Reason),
        "outcome": frozenset(Outcome),
        "state": frozenset(Freshness) | frozenset(BreakerState),
        "end": frozenset(WaitEnd),
        "kind": frozenset({"prompt", "output"}) | frozenset(Kind),
        "class": frozenset(load(directory / "tidegate.yaml").classes),
        "job": frozenset(job["job_name"] for job in scrapes["scrape_configs"]),
    }


@pytest.fixture(scope="session")
def problems_of(
    series: Mapping[str, frozenset[str]], label_values: Mapping[str, frozenset[str]]
) -> Callable[[str], list[str]]:
    """Say what a query asks for that does not exist: series, labels, values of labels."""

    def check(query: str) -> list[str]:
        problems: list[str] = []
        labels: set[str] = set()
        groupings: list[str] = []

        def visit(node: promql.Expr) -> bool:
            if isinstance(node, promql.VectorSelector):
                name = node.name or ""
                if name not in series:
                    problems.append(f"no such series: {name}")
                    return True
                labels.update(series[name])
                for matcher in node.matchers.matchers:
                    if matcher.name not in series[name]:
                        problems.append(f"{name} has no label {matcher.name}")
                    values = set(matcher.value.split("|"))
                    if unknown := values - label_values.get(matcher.name, values):
                        problems.append(f"{matcher.name} is never {sorted(unknown)}")
            if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
                groupings.extend(node.modifier.labels)
            return True

        promql.walk(promql.parse(query), visit)
        problems.extend(f"no label to group by: {name}" for name in set(groupings) - labels)
        return problems

    return check
