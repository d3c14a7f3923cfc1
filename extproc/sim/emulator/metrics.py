"""The ``/metrics`` page of an emulated engine, in vLLM 0.32's names, labels and order.

Pure: numbers in, text out. Only what gateways, autoscalers and dashboards read is there; a real page
has some sixty series more, most of them histograms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.sim.engine import Engine

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
WAITING_REASONS = ("capacity", "deferred")
REJECTION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows.

    Attributes:
        model: name of the model.
        engine: the engine model.
        kv_usage: used share of the KV cache, 0..1.
        finished: finished requests by reason. Aborts by disconnect do not count in vLLM.
        rejected: requests refused for too many unfinished ones.
        started: start of the process, seconds since the epoch.
        sized: it tells how large the cache is.
    """

    model: str
    engine: Engine
    kv_usage: float
    finished: Mapping[str, int]
    rejected: int
    started: float
    sized: bool = True


def process_page(started: float) -> str:
    """Return the part of a page that every Python process has: no series of the engine."""
    name = "process_start_time_seconds"
    text = "Start time of the process since unix epoch in seconds."
    return _family(name, "gauge", text, {"": started})


def metrics_page(page: Page) -> str:
    """Return the whole page."""
    engine = page.engine
    labels = f'engine="0",model_name="{_escaped(page.model)}"'
    model = f'model_name="{_escaped(page.model)}"'
    blocks, size = engine.config.num_gpu_blocks, engine.config.block_size
    waiting = {"capacity": engine.waiting, "deferred": 0}
    hits = engine.prefix_hits_total
    families = [
        process_page(page.started),
        _family(
            "vllm:num_requests_running",
            "gauge",
            "Number of requests in model execution batches.",
            {labels: engine.running},
        ),
        _family(
            "vllm:num_requests_waiting",
            "gauge",
            "Number of requests waiting to be processed.",
            {labels: engine.waiting},
        ),
        _family(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
            "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, "
            "blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
            {f'{labels},reason="{reason}"': waiting[reason] for reason in WAITING_REASONS},
        ),
        _family(
            "vllm:kv_cache_usage_perc",
            "gauge",
            "KV-cache usage. 1 means 100 percent usage.",
            {labels: page.kv_usage},
        ),
    ]
    counters: list[tuple[str, str, dict[str, float]]] = [
        (
            "vllm:prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
            {labels: engine.prefix_queries_total},
        ),
        (
            "vllm:prefix_cache_hits",
            "Prefix cache hits, in terms of number of cached tokens.",
            {labels: hits},
        ),
        (
            "vllm:num_preemptions",
            "Cumulative number of preemption from the engine.",
            {labels: engine.preemptions_total},
        ),
        (
            "vllm:prompt_tokens",
            "Number of prefill tokens processed.",
            {labels: engine.prompt_tokens_total},
        ),
        (
            "vllm:generation_tokens",
            "Number of generation tokens processed.",
            {labels: engine.generation_tokens_total},
        ),
        (
            "vllm:request_success",
            "Count of successfully processed requests.",
            {
                f'engine="0",finished_reason="{reason}",{model}': page.finished.get(reason, 0)
                for reason in FINISHED_REASONS
            },
        ),
        (
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            {
                f'{model},reason="{reason}"': page.rejected if reason == REJECTION_REASONS[0] else 0
                for reason in REJECTION_REASONS
            },
        ),
    ]
    for name, text, samples in counters:
        families.append(_family(f"{name}_total", "counter", text, samples))
        created = dict.fromkeys(samples, page.started)
        families.append(_family(f"{name}_created", "gauge", text, created))
    if not page.sized:
        return "".join(families)
    config = (
        f'block_size="{size}",enable_prefix_caching="True",engine="0",'
        f'kv_cache_size_tokens="{blocks * size}",num_gpu_blocks="{blocks}",'
        f'num_gpu_blocks_override="{blocks}"'
    )
    text = "Information of the LLMEngine CacheConfig"
    families.append(_family("vllm:cache_config_info", "gauge", text, {config: 1}))
    return "".join(families)


def _family(name: str, kind: str, text: str, samples: Mapping[str, float]) -> str:
    lines = [f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n"]
    for labels, value in samples.items():
        shown = f"{{{labels}}}" if labels else ""
        lines.append(f"{name}{shown} {float(value)}\n")
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
