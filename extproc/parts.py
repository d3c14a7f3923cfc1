"""The parts of a Tidegate, each made from what the configuration says of it.

Rule this module keeps: every part is made here alone and knows nothing of the others; `app` connects
them.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from extproc import __version__
from extproc.config import (
    Config,
    ConfigError,
    Problem,
    agent_policy,
    catalog_of,
    load_keys,
    load_ticket_key,
    reply_rules,
)
from extproc.core.agents.rules import Agents
from extproc.core.breaker import Breaker, Rules
from extproc.core.capacity import Pool
from extproc.core.classes import ServiceClass
from extproc.core.controller import Line
from extproc.core.modes import ModeGate
from extproc.core.queue import Queue, QueueLimits
from extproc.core.tickets import Tickets
from extproc.core.valve import Valve
from extproc.edge.agent_identity import SOURCES
from extproc.edge.agents import AgentDesk
from extproc.edge.identity import FromApiKey, FromHeader, FromMetadata, IdentitySource
from extproc.edge.in_flight import AnswerRules
from extproc.edge.pump import Pump
from extproc.edge.responder import Routing
from extproc.edge.terms import Terms
from extproc.edge.valve_desk import ValveDesk
from extproc.edge.wording import Wording
from extproc.engines.load_report import read_load_report
from extproc.quota.errors import QuotaError
from extproc.quota.plans import quota_plans
from extproc.sharing.room import Sharing
from extproc.telemetry.decision_log import DecisionLog
from extproc.telemetry.envoy_stats import EnvoyStats
from extproc.telemetry.metrics import Metrics
from extproc.telemetry.recorder import Recorder
from extproc.telemetry.valve import ValveCollector

if TYPE_CHECKING:
    from extproc.quota.outbox import Outbox
    from extproc.telemetry.tracing import Tracing


def name(rng: random.Random) -> str:
    """Return a name for this process that no other has."""
    return f"{rng.getrandbits(48):012x}"


def sharing(
    config: Config,
    name: str,
    pools: Mapping[str, Pool],
    outbox: Outbox | None,
    clock: Callable[[], float],
    rng: random.Random,
) -> Sharing | None:
    """Return what is shared with other Tidegates, or None where nothing is."""
    if config.state.redis is None:
        return None
    return Sharing(
        config.state.redis,
        name,
        pools,
        outbox=outbox,
        clock=clock,
        wall_clock=time.time,
        rng=rng,
        behind=lambda: outbox is not None and outbox.lag > 1.0,
    )


def id_source(name: str) -> Callable[[], str]:
    """Return a source of ids: unique over processes by their name, here by a count."""
    numbers = itertools.count(1)
    return lambda: f"{name}{next(numbers):08x}"


def desk(config: Config, clock: Callable[[], float], pump: Pump) -> AgentDesk | None:
    """Return what keeps the runs of agents, or None where they are not limited."""
    policy = agent_policy(config)
    if config.agents is None or policy is None:
        return None
    return AgentDesk(
        Agents(policy),
        [SOURCES[place] for place in config.agents.identity],
        default_tenant=config.identity.default_tenant,
        merge_wait=config.agents.merge_wait,
        clock=clock,
        bell=pump.ring,
    )


def decision_log(config: Config) -> DecisionLog | None:
    """Return the decision log, or None. Raises ConfigError where it cannot be written to."""
    settings = config.decision_log
    if settings is None:
        return None
    try:
        return DecisionLog(settings.file, max_bytes=settings.max_size, keep=settings.keep)
    except OSError as error:
        problem = Problem(None, "decision_log.file", "", f"cannot be written: {error.strerror}")
        raise ConfigError(settings.file, (problem,)) from error


def tracing(config: Config, wall_clock: Callable[[], float]) -> Tracing | None:
    """Return what makes spans, or None. Raises ConfigError where its packages are missing."""
    settings = config.tracing
    if settings is None:
        return None
    try:
        from extproc.telemetry.tracing import Tracing  # of an extra that others do not need
    except ModuleNotFoundError as error:
        problem = Problem(None, "tracing", "", "needs more: pip install 'tidegate[tracing]'")
        raise ConfigError(Path("tracing"), (problem,)) from error
    return Tracing(
        settings.endpoint,
        settings.ratio,
        version=__version__,
        instance=f"{socket.gethostname()}:{os.getpid()}",
        wall_clock=wall_clock,
    )


def followers(
    desk: AgentDesk | None, outbox: Outbox | None
) -> tuple[Callable[[Config], None], ...]:
    """Return what goes over to another configuration beside what calls are judged by."""

    def agents(config: Config) -> None:
        policy = agent_policy(config)
        if desk is not None and policy is not None:
            desk.agents.policy = policy

    def ledger(config: Config) -> None:
        if outbox is not None:
            outbox.follow(quota_plans(config))

    return agents, ledger


def breaker(config: Config) -> Breaker | None:
    """Return the output breaker, or None."""
    rules = config.breaker
    return None if rules is None else Breaker(Rules(**rules.model_dump()))


def outbox(config: Config) -> Outbox | None:
    """Return the way to the ledger, or None where no plan has a quota."""
    if all(plan.quota is None for plan in config.plans.values()):
        return None
    try:
        from extproc.quota.opening import make_outbox  # 25 MiB that others have no use for
    except ModuleNotFoundError as error:
        raise QuotaError(
            "a plan has a quota, which needs a ledger: pip install 'tidegate[quota]'"
        ) from error
    return make_outbox(config, time.time)


def valve(
    config: Config,
    gate: ModeGate,
    pools: Mapping[str, Pool],
    clock: Callable[[], float],
    metrics: Metrics,
    recorder: Recorder | None,
) -> ValveDesk | None:
    """Return what turns the flood valve, or None where there is none."""
    settings = config.envoy.valve
    if settings is None:
        return None
    desk = ValveDesk(
        Valve(pools, gate.classes, through=settings.through),
        gate,
        pools,
        sampled=settings.sampled,
        clock=clock,
        tallies=(metrics,) if recorder is None else (metrics, recorder),
        record=None if recorder is None else recorder.decided,
    )
    lowered = [each.name for each in gate.classes if not each.strict]
    metrics.registry.register(ValveCollector(desk, pools, lowered))
    return desk


def envoy_stats(config: Config, desk: ValveDesk) -> EnvoyStats | None:
    """Return what reads the counts of Envoys, or None where no Envoy's admin address is known."""
    settings, admin = config.envoy.valve, config.envoy.admin
    addresses = (settings and settings.stats) or (() if admin is None else (admin,))
    if not addresses:
        return None
    return EnvoyStats(
        addresses,
        desk.counted,
        pools=config.pools,
        classes=config.classes,
        mine=lambda: config.listen.workers == 1 or desk.discovery.streams > 0,
    )


def lines(config: Config, classes: Sequence[ServiceClass], secret: bytes | None) -> dict[str, Line]:
    """Return the line before each pool. Raises ConfigError where the ticket key cannot be used."""
    key = load_ticket_key(config) or secret or secrets.token_bytes(32)
    tickets = config.tickets
    return {
        name: Line(
            queue=Queue(QueueLimits(pool.queue.max_calls, pool.queue.max_bytes), classes),
            tickets=Tickets(key, window=tickets.window),
            reserve=tickets.reserve,
        )
        for name, pool in config.pools.items()
    }


def terms(config: Config, reported: Callable[[str, str, str], None]) -> Terms:
    """Return what calls are judged and answered by.

    Raises:
        ConfigError: a key file cannot be used.
    """
    return Terms(
        sources=sources(config),
        catalog=catalog_of(config),
        routing=routing(config),
        reply_rules=reply_rules(config),
        wording=wording(config),
        answers=AnswerRules(
            replaced=frozenset(map(str, config.fallback.engine_statuses)),
            read_usage=config.envoy.usage_source == "ext_proc",
            reported=reported,
        ),
    )


def routing(config: Config) -> Routing:
    """Return which pool serves which model."""
    names = {name: name for name in config.pools}
    aliases = {alias: name for name, pool in config.pools.items() for alias in pool.aliases}
    return Routing(
        pools={**names, **aliases},
        default="*" if "*" in config.pools else next(iter(config.pools), None),
        priorities=frozenset(
            name for name, pool in config.pools.items() if pool.scheduling_policy == "priority"
        ),
        name_pool=len(config.pools) > 1,
    )


def sources(config: Config) -> tuple[IdentitySource, ...]:
    """Return who is asked who calls. Raises ConfigError where a key file cannot be used."""
    sources: list[IdentitySource] = []
    keys = load_keys(config)
    for source in config.identity.sources:
        if source.metadata is not None:
            sources.append(FromMetadata(source.metadata.filter, source.metadata.path))
        elif source.header is not None:
            sources.append(FromHeader(source.header.name, trusted=source.header.trusted))
        else:
            sources.append(FromApiKey(keys))
    return tuple(sources)


def load_reports(
    pools: Mapping[str, Pool], clock: Callable[[], float]
) -> Callable[[str, str, str], None]:
    """Return who hears what answers tell of their engines: the pools."""

    def reported(pool: str, endpoint: str, header: str) -> None:
        report = read_load_report(header)
        if report is not None:
            pools[pool].report(endpoint, report.kv_usage, report.waiting, clock())

    return reported


def wording(config: Config) -> Wording:
    """Return the words that refused callers read."""
    fallback = config.fallback
    seconds = round(fallback.retry_after)
    return Wording(
        messages={
            "zh": fallback.message.zh.format(seconds=seconds),
            "en": fallback.message.en.format(seconds=seconds),
        },
        default=fallback.language,
        finish_reason=fallback.finish_reason,
        retry_after=seconds,
        refusal=fallback.structured == "refusal",
    )
