"""What one page of vLLM's ``/metrics`` says about the models that the server runs.

Rules this module keeps:

* Any bytes give readings or `NotAnEnginePage`, nothing else; the work is bounded, whatever they are.
* A page is believed whole or not at all: where a series that we need is missing for an engine,
  unreadable or out of its range, there is no reading. So nothing missing is ever read as idle.
* Only the lines that we need are looked at; the rest of the page costs a search in C.
* Several engines behind one endpoint are one reading: their queues are added up, the fullest KV
  cache counts. A series that stands there twice counts once, with its higher value.
* How many blocks there are, and how many tokens were read and generated, is welcome but not needed:
  unless every engine says it, it is unknown.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text 0.0.4, and OpenMetrics as
far as these series go, where a writer may turn ``vllm:`` into ``vllm_``). A last line without its
line feed is a cut one, and is not read.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice

from extproc.core.readings import Reading

MAX_SERIES = 512
"""More needed series than this on one page are refused; an engine has seven."""
MAX_NEEDED_BYTES = 128 << 10
"""More bytes than this in the needed lines are refused; an engine has about 1.5 KB."""

_KV = b"kv_cache_usage_perc"
_OLD_KV = b"gpu_cache_usage_perc"  # the name until vLLM 0.10
_RUNNING = b"num_requests_running"
_WAITING = b"num_requests_waiting"
_PREEMPTIONS = b"num_preemptions_total"
_CONFIG = b"cache_config_info"
_GENERATED = b"generation_tokens_total"
_PROMPTED = b"prompt_tokens_total"
_REQUIRED = frozenset((_KV, _OLD_KV, _RUNNING, _WAITING, _PREEMPTIONS))

# Possessive quantifiers (++, *+) never backtrack: the work is linear in the page.
_NEEDED = re.compile(  # the literal start makes this a substring search
    rb"\nvllm[:_](%s)([ \t{][^\n]*+)(?=\n)"
    % b"|".join((*sorted(_REQUIRED), _GENERATED, _PROMPTED, _CONFIG))
)
_NAME = rb"[a-zA-Z_][a-zA-Z0-9_]*+"
_TEXT = rb'(?:[^"\\]|\\.)*+'
_LABEL = re.compile(rb'(%s)[ \t]*+=[ \t]*+"(%s)"' % (_NAME, _TEXT))
_SAMPLE = re.compile(
    rb"[ \t]*+"
    rb'(?:\{((?:[ \t]*+%s[ \t]*+=[ \t]*+"%s"[ \t]*+(?:,|(?=\})))*+)[ \t]*+\})?+[ \t]*+'
    rb"([^ \t\r_{}#]++)"  # the value; Python's float would take an underscore
    rb"(?:[ \t]++-?[0-9.]++)?+"  # a timestamp
    rb"(?:[ \t]++#[^\n]*+)?+"  # an exemplar
    rb"[ \t\r]*+" % (_NAME, _TEXT)
)
_ESCAPE = re.compile(rb'\\([\\n"])')

_Labels = Mapping[bytes, bytes]
_Identity = frozenset[tuple[bytes, bytes]]
_Engine = tuple[str, bytes]  # model, engine label
_Values = dict[_Engine, dict[_Identity, float]]


class NotAnEnginePage(Exception):  # noqa: N818  (says what the page is, not that we failed)
    """The page gives no reading; ``reason`` says what is wrong with it, without quoting it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse(page: bytes) -> dict[str, Reading]:
    """Return the reading of each model on the page, by the name that vLLM serves it under.

    Where the series have no ``model_name``, that name is ``""``.

    Raises:
        NotAnEnginePage: the page has no KV series, or what it has cannot be relied on.
    """
    needed = [match.groups() for match in islice(_NEEDED.finditer(b"\n" + page), MAX_SERIES + 1)]
    if len(needed) > MAX_SERIES or sum(len(rest) for _, rest in needed) > MAX_NEEDED_BYTES:
        raise NotAnEnginePage("the page has more vllm: series than a server can have")
    found: defaultdict[bytes, _Values] = defaultdict(lambda: defaultdict(dict))
    configs: dict[_Identity, _Labels] = {}
    for metric, rest in needed:
        sample = _SAMPLE.fullmatch(rest)
        if sample is None and metric not in _REQUIRED:
            continue
        if sample is None:
            raise NotAnEnginePage(f"a line of vllm:{metric.decode()} cannot be read")
        labels = dict(_LABEL.findall(sample[1] or b""))
        identity = frozenset(labels.items())
        if metric == _CONFIG:
            configs[identity] = labels
            continue
        engine = _text(labels.get(b"model_name", b"")), labels.get(b"engine", b"")
        value = _value(sample[2])
        if value is None and metric in _REQUIRED:
            raise NotAnEnginePage(f"vllm:{metric.decode()} has a value that makes no sense")
        if value is not None:
            series = found[metric][engine]
            series[identity] = max(value, series.get(identity, 0.0))
    usage = _KV if _KV in found else _OLD_KV
    _complete(found, usage)
    models = {model for model, _ in found[usage]}
    return {
        model: _reading(
            *(_of(found[metric], model) for metric in (usage, _RUNNING, _WAITING, _PREEMPTIONS)),
            generated=_total(found[_GENERATED], found[usage], model),
            prompted=_total(found[_PROMPTED], found[usage], model),
            engines=sum(model == of for of, _ in found[usage]),
            configs=_configs_of(configs.values(), model, len(models)),
        )
        for model in models
    }


def _complete(found: Mapping[bytes, _Values], usage: bytes) -> None:
    """Check that each engine that any needed series speaks of has all of them."""
    if usage not in found:
        raise NotAnEnginePage(
            "there is no vllm:kv_cache_usage_perc (nor vllm:gpu_cache_usage_perc): "
            "does a vLLM server with metrics listen here?"
        )
    everyone = set().union(*(found[metric] for metric in _REQUIRED & found.keys()))
    for metric in (usage, _RUNNING, _WAITING, _PREEMPTIONS):
        if everyone != set(found.get(metric, ())):
            raise NotAnEnginePage(f"vllm:{metric.decode()} is missing for an engine of this server")


def _of(values: _Values, model: str) -> list[float]:
    return [v for (of, _), series in values.items() if of == model for v in series.values()]


def _total(values: _Values, engines: _Values, model: str) -> int | None:
    """Return the sum of a counter over a model's engines, or None unless each of them has it."""
    if any(engine not in values for engine in engines if engine[0] == model):
        return None
    return math.ceil(sum(_of(values, model)))


def _configs_of(configs: Iterable[_Labels], model: str, models: int) -> list[_Labels]:
    """Return the configurations of a model; one without a name is that of the only model."""
    return [
        config
        for config in configs
        if (_text(config[b"model_name"]) == model if b"model_name" in config else models == 1)
    ]


def _reading(
    kv: Iterable[float],
    running: Iterable[float],
    waiting: Iterable[float],
    preemptions: Iterable[float],
    *,
    generated: int | None,
    prompted: int | None,
    engines: int,
    configs: Iterable[_Labels],
) -> Reading:
    blocks = [_count(config.get(b"num_gpu_blocks")) for config in configs]
    sizes = {_count(config.get(b"block_size")) for config in configs}
    known = [count for count in blocks if count is not None]
    return Reading(
        kv_usage=min(1.0, max(kv)),  # over 1 is full, whatever the engine means by it
        blocks=sum(known) if len(known) == len(blocks) == engines else None,
        block_size=sizes.pop() if len(sizes) == 1 else None,
        running=math.ceil(sum(running)),
        waiting=math.ceil(sum(waiting)),
        preemptions=math.ceil(sum(preemptions)),
        generated=generated,
        prompted=prompted,
    )


def _value(text: bytes) -> float | None:
    """Return a number, or None where it makes no sense."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e15 else None


def _count(text: bytes | None) -> int | None:
    """Return the positive number in a label; vLLM writes ``None`` for what it does not know yet."""
    if text is None or not text.isdigit() or len(text) > 15:
        return None
    return int(text) or None


def _text(value: bytes) -> str:
    """Return a label's value; as Prometheus' own parser does, leave unknown escapes alone."""
    if b"\\" in value:
        value = _ESCAPE.sub(lambda escape: b"\n" if escape[1] == b"n" else escape[1], value)
    return value.decode("utf-8", "replace")
