"""A configuration as the core knows it; serving and drilling mean the same classes."""

from __future__ import annotations

from extproc.config.model import Config, PoolConfig
from extproc.config.plans import plans
from extproc.core.capacity import PoolLimits
from extproc.core.classes import Catalog, ServiceClass, Task, Tenant
from extproc.core.reasons import ReplyOverride, ReplyRules


def service_classes(config: Config) -> tuple[ServiceClass, ...]:
    """Return the classes, highest first."""
    return tuple(
        ServiceClass(
            name=name,
            rank=rank,
            strict=each.strict,
            close=each.free_watermark.close,
            open=each.free_watermark.open,
            concurrency=each.concurrency,
            max_output=each.max_tokens,
            max_prompt=each.max_prompt_tokens,
            engine_priority=each.engine_priority,
            prefill_cap=each.prefill_cap,
            prefill_wait=each.prefill_wait,
            evictable=each.evictable,
            weight=each.weight,
            max_wait=each.max_wait,
        )
        for rank, (name, each) in enumerate(config.classes.items())
    )


def catalog_of(config: Config) -> Catalog:
    """Return what calls are classified by."""
    classes = {each.name: each for each in service_classes(config)}
    bought = plans(config)
    tenants = {
        name: Tenant(
            name,
            classes[each.class_],
            each.finish_reason,
            each.language,
            None if each.plan is None else bought[each.plan],
        )
        for name, each in config.tenants.items()
    }
    default = config.identity.default_tenant
    lowest = list(classes.values())[-1]
    tasks = {
        name: Task(
            name=name,
            ceiling=None if each.class_ is None else classes[each.class_],
            max_output=each.max_tokens,
            max_prompt=each.max_prompt_tokens,
            stop=each.stop,
            stop_on=each.stop_on,
        )
        for name, each in config.tasks.items()
    }
    matches = {name: each.match for name, each in config.tasks.items()}
    return Catalog(
        classes=tuple(classes.values()),
        tenants=tenants,
        default_tenant=tenants.get(default, Tenant(default, lowest)),
        tasks=tasks,
        task_by_path={m.path: name for name, m in matches.items() if m.path is not None},
        task_by_model={m.model: name for name, m in matches.items() if m.model is not None},
    )


def pool_limits(pool: PoolConfig) -> PoolLimits:
    """Return what the configuration says of a pool."""
    return PoolLimits(
        max_concurrency=pool.max_concurrency,
        stale_after=pool.scrape.stale_after,
        unknown_after=pool.scrape.unknown_after,
        pick=pool.balance == "pick",
        blocks=pool.blocks,
        block_size=pool.block_size,
    )


def reply_rules(config: Config) -> ReplyRules:
    """Return how refused calls are answered."""
    return ReplyRules(
        tuple(
            ReplyOverride(each.reason, each.class_, each.tenant, each.kind, each.status)
            for each in config.fallback.overrides
        )
    )
