"""The classes of a configuration as the core knows them; serving and drilling mean the same ones."""

from __future__ import annotations

from extproc.config.model import Config
from extproc.core.classes import ServiceClass


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
