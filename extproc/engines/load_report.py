"""The load that an engine tells beside an answer: an ORCA report in a response's header.

vLLM gives one with answers of chat and completions that do not stream, when asked, in either form::

    JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.25}}
    TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.25

Rules this module keeps:

* A header that says neither, or says it oddly, says nothing; it is never an error.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

_KV_USAGE, _WAITING = "kv_cache_usage_perc", "num_requests_waiting"
_PREFIX = "named_metrics."
_MOST_WAITING = 1 << 31


class LoadReport(NamedTuple):
    """What an engine says of itself: used share of its KV cache, 0..1, and sequences that wait."""

    kv_usage: float
    waiting: int


class _Json(msgspec.Struct, gc=False):
    named_metrics: dict[str, float] = {}


_decode = msgspec.json.Decoder(_Json).decode


def read_load_report(header: str) -> LoadReport | None:
    """Return what the value of ``endpoint-load-metrics`` says, or None."""
    form, _, report = header.partition(" ")
    try:
        match form:
            case "JSON":
                metrics = _decode(report).named_metrics
            case "TEXT":
                metrics = _text(report)
            case _:
                return None
        usage, waiting = metrics[_KV_USAGE], metrics[_WAITING]
    except (msgspec.DecodeError, ValueError, LookupError):
        return None
    if not (0 <= usage <= 1 and 0 <= waiting <= _MOST_WAITING):
        return None
    return LoadReport(usage, int(waiting))


def _text(report: str) -> dict[str, float]:
    pairs = (pair.partition("=") for pair in report.split(","))
    return {name.strip().removeprefix(_PREFIX): float(value) for name, _, value in pairs}
