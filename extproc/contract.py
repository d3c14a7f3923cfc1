"""What Envoy's configuration and the processor must agree on: attribute, header and metadata names.

The generated Envoy files (``envoyconf``) and the processor (``edge``) both take the names from
here, so that neither can drift from the other.
"""

from __future__ import annotations

from extproc.config import Config
from extproc.core.reasons import Reason

FILTER_NAME = "tidegate"
"""The name of the ext_proc filter in the generated configuration."""
NAMESPACE = "tidegate"
"""Dynamic metadata that we set: ``id``, ``tenant``, ``class``, ``verdict``, ``reason``, ``pool``."""
USAGE_CHUNK, LEFT_OUT = "usage_chunk", "left_out"
"""Dynamic metadata of streams that end in a chunk with the usage because we asked for that."""
USAGE_NAMESPACE = "tidegate.usage"
"""Dynamic metadata that Envoy's own filters read out of the response: the token counts below."""
PROMPT_TOKENS = "prompt_tokens"
COMPLETION_TOKENS = "completion_tokens"

PROCESSOR_CLUSTER = "tidegate"
"""The Envoy cluster of the processor: ext_proc and access log."""
ENDPOINT_NAMESPACE = "envoy.lb"
ENDPOINT_KEY = "tidegate-endpoint"
"""Dynamic metadata that names the chosen endpoint, ``ip:port``, where a pool has `balance: pick`."""

POOL_HEADER = "x-tidegate-pool"
"""Set by us, stripped from clients: names the pool where the configuration has several.

Envoy takes it only from filters that send us the request's headers; where they come as attributes,
it drops header mutations, and routes by the metadata ``pool`` instead.
"""
OWN_HEADERS_PREFIX = "x-tidegate-"

TICKET_HEADER = "x-tidegate-ticket"
"""Names a reserved place: given with a fallback, and taken from clients that come again with it."""
LOG_INTERVAL = 0.05
"""Seconds between two batches of access-log records that each of Envoy's threads sends; more often only where
a batch of 16 KiB is full before, some twenty records."""
VALVE_NAMESPACE = "tidegate.valve"
"""Dynamic metadata of the flood valve: ``tenant``, ``class``; of what it refuses also ``id``, ``pool``,
``endpoint`` and ``reason``."""
VALVE_CLASS_HEADER, VALVE_MARK_HEADER = "x-tidegate-valve-class", "x-tidegate-valve"
"""Set by Envoy's own filters before us, and taken away again: whose call it is, why it may be refused."""
VALVE_REASONS = (
    Reason.MODE_TRANSACTIONS_ONLY,
    Reason.MODE_PROTECT,
    Reason.KV_WATERMARK,
    Reason.CONCURRENCY,
    Reason.FLOOD,
)
"""Reasons that the valve knows; all others are `Reason.FLOOD` to it."""
VALVE_LAYER = "tidegate"
"""The runtime layer, and the name of its resource, that Envoy asks us for (RTDS)."""
VALVE_FIRST, VALVE_SAMPLED = "tidegate.first", "tidegate.sampled"
"""Runtime keys, in percent: the first stage; refusals whose record reaches us."""
VALVE_STATS = "tidegate_valve"
"""The prefix of the valve's own counter in Envoy."""


def valve_key(service_class: str, reason: Reason, pool: str) -> str:
    """Return the runtime key, in percent, of what is refused of a class for a reason."""
    return f"tidegate.shed.{service_class}.{reason.value}.{pool}"


TASK_HEADER = "x-task-type"
TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C trace context; read where calls are traced, and never changed."""

MERGE_HEADER = "x-agent-merge"
"""``off``: this call wants an answer of its own, not that of an identical one."""
AGENT_HEADERS = {
    "headers": (
        "x-agent-run-id",
        "x-agent-task-id",
        "x-agent-parent-id",
        "x-agent-depends-on",
        "x-agent-depth",
    ),
    "metadata": (),
    "baggage": ("baggage",),
    "traceparent": ("traceparent",),
}
"""What each place where a call can name its run reads of the headers; see ``agents.identity``."""

PATH = "request.path"
REQUEST_ID = "request.id"
UPSTREAM = "upstream.address"
"""Comes with the response's headers: the engine that answers, ``ip:port``."""
LOAD_REPORT = "endpoint-load-metrics"
LOAD_REPORT_FORMAT = "endpoint-load-metrics-format"
"""vLLM answers a request that has this with its load in a header of the response (ORCA)."""
DETAILS = "response.code_details"
"""Comes with the response's headers: whether the engine or Envoy made them, and why."""


def pool_cluster(pool: str) -> str:
    """Return the name of the Envoy cluster that holds a pool's endpoints."""
    return f"tidegate-pool-{pool}"


def header_attribute(name: str) -> str:
    """Return the CEL attribute of a request header; ``name`` is in lower case."""
    return f"request.headers['{name}']"


def request_headers(config: Config) -> tuple[str, ...]:
    """Return the request headers that this configuration reads, in lower case, sorted."""
    names = {TASK_HEADER, TICKET_HEADER, "accept-language"}
    if config.tracing is not None:
        names.update(TRACE_HEADERS)
    if config.agents is not None:
        for place in config.agents.identity:
            names.update(AGENT_HEADERS[place])
        if config.agents.merge_wait > 0:
            names.add(MERGE_HEADER)
    for source in config.identity.sources:
        if source.header is not None:
            names.add(source.header.name)
        if source.api_key is not None:
            names.update(("authorization", "x-api-key"))
    return tuple(sorted(names))


def longest_wait(config: Config) -> float:
    """Return how long Envoy may be kept waiting for a verdict, in seconds."""
    agents = config.agents
    if agents is None or agents.merge_wait == 0.0:
        return config.envoy.message_timeout
    # Who has followed another in vain is judged then, and may have to wait its turn.
    return agents.merge_wait + config.envoy.message_timeout


def request_attributes(config: Config) -> tuple[str, ...]:
    """Return the attributes that Envoy sends along with the request body."""
    headers = (header_attribute(name) for name in request_headers(config))
    return (REQUEST_ID, PATH, *headers)


def metadata_namespaces(config: Config) -> tuple[str, ...]:
    """Return the namespaces of other filters' metadata that Envoy forwards to us, sorted."""
    sources = config.identity.sources
    return tuple(sorted({s.metadata.filter for s in sources if s.metadata is not None}))
