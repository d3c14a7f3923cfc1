"""What a metrics page is taken to say, and what it is never taken to say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.readings import Reading
from extproc.engines.page import MAX_NEEDED_BYTES, MAX_SERIES, NotAnEnginePage, parse

PAGE = """\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",major="3"} 1.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 17.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 17.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.9763779527559056
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 2.0
# HELP vllm:num_preemptions_created Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.796076080803741e+09
# TYPE vllm:request_num_preemptions histogram
vllm:request_num_preemptions_bucket{engine="0",le="1.0",model_name="tiny"} 7.0
vllm:request_num_preemptions_count{engine="0",model_name="tiny"} 7.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 20530.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 15874.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{_block_size_resolved="True",block_size="32",engine="0",\
kv_cache_dtype_skip_layers="[]",mamba_block_size="None",num_cpu_blocks="None",\
num_gpu_blocks="128",num_gpu_blocks_override="96",sliding_window="None"} 1.0
# TYPE http_requests_total counter
http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 7.0
"""
BUSY = Reading(
    0.9763779527559056,
    blocks=128,
    block_size=32,
    running=4,
    waiting=17,
    preemptions=2,
    generated=15874,
    prompted=20530,
)


def series(kv: str = "0.5", labels: str = 'engine="0",model_name="m"', usage: str = "kv") -> str:
    """Return the needed series of one engine, with 1 running, 2 waiting, 3 preemptions."""
    return (
        f"vllm:{usage}_cache_usage_perc{{{labels}}} {kv}\n"
        f"vllm:num_requests_running{{{labels}}} 1\n"
        f"vllm:num_requests_waiting{{{labels}}} 2\n"
        f"vllm:num_preemptions_total{{{labels}}} 3\n"
    )


def reading(text: str) -> Reading:
    (only,) = parse(text.encode()).values()
    return only


def refusal(text: str | bytes) -> str:
    with pytest.raises(NotAnEnginePage) as caught:
        parse(text if isinstance(text, bytes) else text.encode())
    assert caught.value.reason == str(caught.value)
    return caught.value.reason


def test_a_page_of_vllm_032() -> None:
    assert parse(PAGE.encode()) == {"tiny": BUSY}


def test_the_same_page_as_openmetrics_with_exemplars_and_timestamps() -> None:
    page = PAGE.replace(" 0.9763779527559056", ' 0.9763779527559056 # {trace_id="a # b"} 1 1.5')
    page = page.replace(" 17.0\n", " 17.0 1796076080.803\n") + "# EOF\n"
    assert parse(page.encode()) == {"tiny": BUSY}


@pytest.mark.parametrize(
    "change",
    [
        lambda page: page.replace("\n", "\r\n"),
        lambda page: page.replace('{engine="0",model_name="tiny"}', '{model_name="tiny",engine="0"}'),
        lambda page: page.replace('{engine="0",', ' { engine = "0" , ').replace("} ", " , } \t"),
        lambda page: page + "\x00\xff\n" * 99 + "\ud7ff" + "x" * 1_000_000,
        lambda page: "\n".join(reversed(page.splitlines())) + "\n",
        lambda page: page + page,
        lambda page: page.replace("vllm:num_requests_running{", "vllm:num_requests_running  {"),
    ],
    ids=["crlf", "label order", "blanks", "garbage elsewhere", "reversed", "twice", "space"],
)  # fmt: skip
def test_the_same_page_written_differently(change: Callable[[str], str]) -> None:
    assert parse(change(PAGE).encode()) == {"tiny": BUSY}


def test_the_old_name_of_the_usage() -> None:
    assert reading(series("0.25", usage="gpu")).kv_usage == 0.25


def test_the_new_name_wins_over_the_old_one() -> None:
    both = series("0.75") + 'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
    assert reading(both).kv_usage == 0.75


def test_several_engines_add_up_their_queues_and_the_fullest_counts() -> None:
    page = "".join(
        series(kv, f'engine="{engine}",model_name="m"')
        + f'vllm:cache_config_info{{engine="{engine}",block_size="16",num_gpu_blocks="100"}} 1\n'
        for engine, kv in enumerate(["0.1", "0.9", "0.3"])
    )
    assert reading(page) == Reading(
        0.9, blocks=300, block_size=16, running=3, waiting=6, preemptions=9
    )


def test_several_models() -> None:
    page = (
        series("0.1", 'engine="0",model_name="a"')
        + series("0.2", 'engine="0",model_name="b"')
        + 'vllm:cache_config_info{model_name="b",block_size="16",num_gpu_blocks="64"} 1\n'
        + 'vllm:cache_config_info{block_size="8",num_gpu_blocks="32"} 1\n'
    )
    assert parse(page.encode()) == {
        "a": Reading(0.1, blocks=None, block_size=None, running=1, waiting=2, preemptions=3),
        "b": Reading(0.2, blocks=64, block_size=16, running=1, waiting=2, preemptions=3),
    }


def test_series_without_labels_are_of_a_nameless_model() -> None:
    page = series().replace('{engine="0",model_name="m"}', "")
    assert parse(page.encode()) == {"": Reading(0.5, None, None, 1, 2, 3)}


def test_escapes_in_a_models_name() -> None:
    page = series(labels=r'model_name="a\"b\\n\nc\d} 1",engine="0"')
    assert list(parse(page.encode())) == ['a"b\\n\nc\\d} 1']


def test_a_name_that_is_not_utf8() -> None:
    assert list(parse(series().replace('"m"', '"\xff"').encode("latin-1"))) == ["\ufffd"]


def test_a_series_that_stands_there_twice_counts_once_with_its_higher_value() -> None:
    page = series() + series("0.6") + series("0.4", 'model_name="m",engine="0"')
    assert reading(page) == Reading(0.6, None, None, running=1, waiting=2, preemptions=3)


@pytest.mark.parametrize(
    ("config", "blocks", "block_size"),
    [
        ('block_size="16",num_gpu_blocks="None"', None, 16),
        ('block_size="None",num_gpu_blocks="64"', 64, None),
        ('block_size="16",num_gpu_blocks="0"', None, 16),
        ('block_size="16",num_gpu_blocks="-5"', None, 16),
        ('block_size="16",num_gpu_blocks="1e3"', None, 16),
        ('block_size="16",num_gpu_blocks="9999999999999999"', None, 16),
        ('block_size="16"', None, 16),
        ('block_size="16",num_gpu_blocks=64', None, None),
    ],
)
def test_a_configuration_that_does_not_say_all(
    config: str, blocks: int | None, block_size: int | None
) -> None:
    page = series() + f"vllm:cache_config_info{{{config}}} 1.0\n"
    assert reading(page) == Reading(0.5, blocks, block_size, 1, 2, 3)


@pytest.mark.parametrize(
    "configs",
    [
        ['engine="0",block_size="16",num_gpu_blocks="64"'],
        [
            'engine="0",block_size="16",num_gpu_blocks="64"',
            'engine="1",block_size="16",num_gpu_blocks="None"',
        ],
    ],
)
def test_blocks_are_unknown_unless_every_engine_says_how_many(configs: list[str]) -> None:
    page = series(labels='engine="0"') + series(labels='engine="1"')
    page += "".join(f"vllm:cache_config_info{{{config}}} 1\n" for config in configs)
    assert (reading(page).blocks, reading(page).block_size) == (None, 16)


def test_engines_that_differ_in_block_size_have_none() -> None:
    page = series(labels='engine="0"') + series(labels='engine="1"')
    page += 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="64"} 1\n'
    page += 'vllm:cache_config_info{engine="1",block_size="32",num_gpu_blocks="64"} 1\n'
    assert (reading(page).blocks, reading(page).block_size) == (128, None)


@pytest.mark.parametrize(("written", "read"), [("1.5", 1.0), ("97", 1.0), ("1e-05", 1e-05)])
def test_more_than_full_is_full(written: str, read: float) -> None:
    assert reading(series(written)).kv_usage == read


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-0.1", "1e300", "0.5.5", "0x1", "\xff"])
def test_a_value_that_makes_no_sense_is_no_reading(value: str) -> None:
    assert refusal(series(value)) == "vllm:kv_cache_usage_perc has a value that makes no sense"


@pytest.mark.parametrize(
    "line",
    [
        'vllm:kv_cache_usage_perc{engine="0"',
        'vllm:kv_cache_usage_perc{engine="0"}',
        'vllm:kv_cache_usage_perc{engine="0"} 0.5 nonsense',
        'vllm:kv_cache_usage_perc{engine=0} 0.5',
        'vllm:kv_cache_usage_perc{engine="0"model_name="m"} 0.5',
        'vllm:kv_cache_usage_perc{engine="0} 0.5',
        "vllm:kv_cache_usage_perc ",
        "vllm:kv_cache_usage_perc 1_0",
    ],
)  # fmt: skip
def test_a_needed_line_that_cannot_be_read_is_no_reading(line: str) -> None:
    assert refusal(f"{series()}{line}\n") == "a line of vllm:kv_cache_usage_perc cannot be read"


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\n",
        b"<html><body>502 Bad Gateway</body></html>",
        bytes(range(256)) * 100,
        b"vllm:num_requests_running 0\n",
        b"vllm:kv_cache_usage_perc_sum 0\n",
        b"# vllm:kv_cache_usage_perc 0\n",
        b'x{a="vllm:kv_cache_usage_perc 0"} 1\n',
    ],
)
def test_what_is_no_engines_page(page: bytes) -> None:
    assert refusal(page) == (
        "there is no vllm:kv_cache_usage_perc (nor vllm:gpu_cache_usage_perc): "
        "does a vLLM server with metrics listen here?"
    )


@pytest.mark.parametrize(
    "name", ["num_requests_running", "num_requests_waiting", "num_preemptions_total"]
)
def test_a_missing_series_is_not_read_as_zero(name: str) -> None:
    page = series().replace(f"vllm:{name}", "vllm:other")
    assert refusal(page) == f"vllm:{name} is missing for an engine of this server"


def test_an_engine_without_usage_spoils_the_page() -> None:
    page = series() + 'vllm:num_requests_running{engine="1",model_name="m"} 5\n'
    assert refusal(page) == "vllm:kv_cache_usage_perc is missing for an engine of this server"


def test_no_cut_of_a_page_gives_another_reading() -> None:
    page = PAGE.encode()
    without_blocks = replace(BUSY, blocks=None, block_size=None)
    without_generated = replace(without_blocks, generated=None)
    without_prompted = replace(without_generated, prompted=None)
    for end in range(len(page)):
        try:
            result = parse(page[:end])
        except NotAnEnginePage:
            continue
        assert result["tiny"] in (BUSY, without_blocks, without_generated, without_prompted)


@pytest.mark.parametrize("value", ["NaN", "-1", "many", "{"])
def test_token_counters_that_make_no_sense_are_unknown(value: str) -> None:
    page = series() + f'vllm:prompt_tokens_total{{engine="0",model_name="m"}} {value}\n'
    assert reading(page).prompted is None


def test_token_counters_add_up_over_engines_and_are_unknown_unless_each_has_them() -> None:
    engines = [f'engine="{number}",model_name="m"' for number in range(2)]
    page = "".join(series(labels=each) for each in engines)
    counters = [f"vllm:generation_tokens_total{{{each}}} 10\n" for each in engines]
    assert reading(page + counters[0]).generated is None
    assert reading(page + "".join(counters)).generated == 20


def test_the_work_is_bounded() -> None:
    too_many = "the page has more vllm: series than a server can have"
    line = b"vllm:kv_cache_usage_perc 0\n"
    assert refusal(line * (MAX_SERIES + 1)) == too_many
    assert refusal(line * MAX_SERIES) != too_many
    assert refusal(b"vllm:kv_cache_usage_perc{" + b"a" * MAX_NEEDED_BYTES + b"} 0\n") == too_many


# Hostile text: a reading or NotAnEnginePage, nothing else.

_FRAGMENTS = st.sampled_from(
    [
        b"vllm:", b"kv_cache_usage_perc", b"gpu_cache_usage_perc", b"num_requests_running", b"\n",
        b"num_requests_waiting", b"num_preemptions_total", b"cache_config_info", b"{", b"}", b'"',
        b"\\", b",", b"=", b"engine", b"model_name", b"block_size", b"num_gpu_blocks", b" ", b"#",
        b"\t", b"\r\n", b"1", b"0.5", b"NaN", b"-1", b"1e308", b"1e15", b"_", b"\xff", b"\x00",
        *series().encode().splitlines(keepends=True),
    ]
)  # fmt: skip


def _parse_or_refuse(page: bytes) -> None:
    try:
        readings = parse(page)
    except NotAnEnginePage:
        return
    assert readings
    for result in readings.values():
        assert 0.0 <= result.kv_usage <= 1.0
        assert min(result.running, result.waiting, result.preemptions) >= 0


@given(st.binary(max_size=400))
def test_any_bytes(page: bytes) -> None:
    _parse_or_refuse(page)


@given(st.lists(_FRAGMENTS, max_size=60).map(b"".join))
def test_any_scraps_of_a_page(page: bytes) -> None:
    _parse_or_refuse(page)


@given(st.data())
def test_any_damage_to_a_page(data: st.DataObject) -> None:
    page = bytearray(PAGE.encode())
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(page)))
        page[start : start + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=8))
    _parse_or_refuse(bytes(page))


# Against Prometheus' own writer and reader.

_NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
_COUNTS = st.integers(0, 10**6)
_ENGINE = st.tuples(
    st.floats(0, 1.25), _COUNTS, _COUNTS, _COUNTS, st.none() | st.integers(1, 10**9)
)
_SERVERS = st.dictionaries(
    _NAMES, st.lists(_ENGINE, min_size=1, max_size=4), min_size=1, max_size=3
)
_Server = dict[str, list[tuple[float, int, int, int, int | None]]]


def _registry(server: _Server, usage: str, *, named_config: bool) -> CollectorRegistry:
    registry = CollectorRegistry()
    names = ("engine", "model_name")
    kv = Gauge(f"vllm:{usage}", "KV", names, registry=registry)
    running = Gauge("vllm:num_requests_running", "Running", names, registry=registry)
    waiting = Gauge("vllm:num_requests_waiting", "Waiting", names, registry=registry)
    preemptions = Counter("vllm:num_preemptions", "Preemptions", names, registry=registry)
    config_names = ["block_size", "num_gpu_blocks", "engine"]
    config_names += ["model_name"] if named_config else []
    config = Gauge("vllm:cache_config_info", "Config", config_names, registry=registry)
    for model, engines in server.items():
        for index, (usage_now, run, wait, preempted, blocks) in enumerate(engines):
            labels = (str(index), model)
            kv.labels(*labels).set(usage_now)
            running.labels(*labels).set(run)
            waiting.labels(*labels).set(wait)
            preemptions.labels(*labels).inc(preempted)
            of_model = (model,) if named_config else ()
            config.labels("16", str(blocks), str(index), *of_model).set(1)
    return registry


def _oracle(page: str, *, named_config: bool) -> dict[str, Reading]:
    """Read the page slowly and plainly with Prometheus' own parser."""
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]

    def values(name: str, model: str) -> list[float]:
        return [s.value for s in samples if s.name == name and s.labels["model_name"] == model]

    models = {s.labels["model_name"] for s in samples if s.name == "vllm:num_requests_running"}
    readings = {}
    for model in models:
        usage = values("vllm:kv_cache_usage_perc", model)
        usage = usage or values("vllm:gpu_cache_usage_perc", model)
        blocks = [
            s.labels["num_gpu_blocks"]
            for s in samples
            if s.name == "vllm:cache_config_info" and s.labels.get("model_name", model) == model
        ]
        told = named_config or len(models) == 1
        readings[model] = Reading(
            kv_usage=min(1.0, max(usage)),
            blocks=sum(map(int, blocks)) if told and "None" not in blocks else None,
            block_size=16 if told else None,
            running=math.ceil(sum(values("vllm:num_requests_running", model))),
            waiting=math.ceil(sum(values("vllm:num_requests_waiting", model))),
            preemptions=math.ceil(sum(values("vllm:num_preemptions_total", model))),
        )
    return readings


@given(_SERVERS, st.sampled_from(["kv_cache_usage_perc", "gpu_cache_usage_perc"]), st.booleans())
@example({'a"\\\n}': [(0.5, 1, 2, 3, None)]}, "kv_cache_usage_perc", False)
def test_what_prometheus_writes_is_read_as_prometheus_reads_it(
    server: _Server, usage: str, named_config: bool
) -> None:
    registry = _registry(server, usage, named_config=named_config)
    page = generate_latest(registry)
    expected = _oracle(page.decode(), named_config=named_config)
    assert parse(page) == expected
    for escaping in ("allow-utf-8", "underscores"):
        page = openmetrics.generate_latest(registry, escaping)  # type: ignore[no-untyped-call]
        assert parse(page) == expected
    assert {model: r.running for model, r in expected.items()} == {
        model: sum(engine[1] for engine in engines) for model, engines in server.items()
    }
