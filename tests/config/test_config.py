"""The configuration: sensible when empty, and clear about everything that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import (
    Config,
    ConfigError,
    RedisAddress,
    load,
    load_keys,
    parse,
    parse_redis_url,
    plans,
)
from extproc.core.limits import Plan, Rate

POOL = "pools: {m: {endpoints: {static: ['a:1']}}}\n"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    return [str(problem) for problem in raised.value.problems]


def test_an_empty_file_is_the_default_configuration() -> None:
    config = parse("")

    assert list(config.classes) == ["P0", "P1", "P2"]
    assert config.classes["P0"].strict
    assert config.classes["P0"].max_tokens == 512
    assert config.classes["P1"].free_watermark.close == 0.08
    assert config.classes["P2"].concurrency == 0.80
    assert config.fallback.finish_reason == "load_shedding_fallback"
    assert config.pools == {}


ADDRESS = (
    "write host:port, the port from 1 to 65535, or unix:///absolute/path where a socket is accepted"
)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "h:",
            ":80",
            "h:0",
            "h:65536",
            "h:\u0663",
            "h:\u00b2",
            "h:" + "9" * 5000,
            "h i:80",
            " :80",
        ),
        *(
            "h\\r\\nx:80",
            "h/p:80",
            "u@h:80",
            "h?q:80",
            "::1:80",
            "[::1:80",
            "[h]:80",
            "https://h:80",
        ),
    ],
)
def test_what_is_no_address(address: str) -> None:
    first, *_ = problems(f'pools: {{m: {{endpoints: {{static: ["{address}"]}}}}}}')
    assert first.endswith(ADDRESS)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("complete_json", ("complete_json",)),
        ("[complete_json, repetition, whitespace]", ("complete_json", "repetition", "whitespace")),
        ("[]", ()),
    ],
)
def test_what_ends_a_tasks_answers(written: str, meant: tuple[str, ...]) -> None:
    assert parse(f"tasks: {{t: {{stop_on: {written}}}}}").tasks["t"].stop_on == meant


@pytest.mark.parametrize("task", ["stop_on: full_stop", "stop_on: [7]", "stop: ['']"])
def test_what_cannot_end_an_answer(task: str) -> None:
    (problem,) = problems(f"tasks: {{t: {{{task}}}}}")
    assert f"tasks.t.{task.partition(':')[0]}.0" in problem


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:8000", "my_pod-1.svc:65535"])
def test_addresses(address: str) -> None:
    assert parse(f"listen: {{http: '{address}'}}").listen.http == address


@pytest.mark.parametrize(
    "text",
    [
        *("requests: {max_body: 1073741825}", "requests: {max_body: 2GiB}"),
        f"requests: {{max_body: {'9' * 30}GiB}}",
        f"envoy: {{message_timeout: {'9' * 300}s}}",
        *("envoy: {message_timeout: 999999999999h}", "envoy: {stream_idle_timeout: 1e10}"),
        "classes: {A: {max_tokens: 9007199254740993}}",
        "pools: {m: {endpoints: {static: ['a:1']}, max_concurrency: 9007199254740993}}",
        "pools: {m: {endpoints: {static: ['a:1']}, blocks: 9007199254740993, block_size: 1}}",
        'pools: {m: {endpoints: {static: ["a:1"]}, scrape: {path: "/a\\r\\nb: c"}}}',
        'pools: {m: {endpoints: {dns: "a b", port: 1}}}',
        'tasks: {a: {match: {path: "/\\n"}}}',
        'identity: {sources: [{header: {name: "a\'b"}}]}',
    ],
)
def test_what_would_break_later_is_refused_at_once(text: str) -> None:
    assert len(problems(text)) == 1


def test_durations_and_sizes_are_written_as_people_do() -> None:
    config = parse(
        "requests: {max_body: 16MiB}\n"
        "fallback: {retry_after: 20}\n"
        "pools: {m: {endpoints: {static: ['a:1']}, scrape: {interval: 250ms, unknown_after: 2m}}}\n"
    )

    assert config.requests.max_body == 16 * 1024 * 1024
    assert config.fallback.retry_after == 20.0
    assert config.pools["m"].scrape.interval == 0.25
    assert config.pools["m"].scrape.unknown_after == 120.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nonsense: 1\n", ["line 1: nonsense: there is no such key"]),
        (
            "listen:\n  http: 127.0.0.1\n",
            [
                (
                    "line 2: listen.http = '127.0.0.1': write host:port, the port from 1 to 65535, "
                    "or unix:///absolute/path where a socket is accepted"
                )
            ],
        ),
        (
            "listen:\n  http: 127.0.0.1:0\n",
            [
                (
                    "line 2: listen.http = '127.0.0.1:0': write host:port, the port from 1 to 65535, "
                    "or unix:///absolute/path where a socket is accepted"
                )
            ],
        ),
        (
            "listen: {processor: 'unix://relative'}\n",
            [
                (
                    "line 1: listen.processor = 'unix://relative': write a socket as unix:// and an "
                    "absolute path"
                )
            ],
        ),
        (
            "classes:\n  P0:\n    max_wait: 10 seconds\n",
            [
                (
                    "line 3: classes.P0.max_wait = '10 seconds': write a duration such as 200ms, 15s, "
                    "2m or 1h"
                )
            ],
        ),
        (
            "requests: {max_body: 1GB}\n",
            ["line 1: requests.max_body = '1GB': write a size in bytes, or such as 64KiB or 16MiB"],
        ),
        (
            "classes:\n  P1:\n    free_watermark: {close: 0.3, open: 0.2}\n",
            ["line 3: classes.P1.free_watermark: open (0.2) must not be under close (0.3)"],
        ),
        (
            "classes:\n  A: {free_watermark: {close: 0.2, open: 0.3}}\n  B: {}\n",
            [
                "line 3: classes.B.free_watermark.close: under that of A above it",
                "line 3: classes.B.free_watermark.open: under that of A above it",
            ],
        ),
        (
            "tenants: {a: {class: P1, agents: {calls: 5}}}\n",
            ["line 1: tenants.a.agents: there is no section agents"],
        ),
        (
            "agents: {dependency_wait: 5s}\nenvoy: {message_timeout: 15s}\n",
            [
                (
                    "line 2: envoy.message_timeout: must be over classes.P0.max_wait and "
                    "agents.dependency_wait together"
                )
            ],
        ),
        (
            "agents: {merge_wait: 10m}\n",
            ["line 1: agents.merge_wait: must be under envoy.stream_idle_timeout"],
        ),
        (
            "breaker: {open_for: 2m, longest: 1m}\n",
            ["line 1: breaker: longest must not be under open_for"],
        ),
        (
            "classes:\n  A: {concurrency: 0.5}\n  B: {strict: true}\n",
            [
                "line 3: classes.B.strict: A above it is not strict",
                "line 3: classes.B.concurrency: over that of A above it",
            ],
        ),
        (
            "classes:\n  A: {prefill_cap: 9, prefill_wait: 1s}\n  B: {prefill_wait: 2s}\n",
            [
                "line 3: classes.B.prefill_cap: over that of A above it",
                "line 3: classes.B.prefill_wait: over that of A above it",
            ],
        ),
        (
            "pools: {m: {endpoints: {static: ['a:1']}, blocks: 100}}\n",
            ["line 1: pools.m: blocks and block_size go together"],
        ),
        ("tenants: {t: {class: P9}}\n", ["line 1: tenants.t.class: there is no class P9"]),
        (
            "tenants: {t: {class: P0, plan: gold}}\nplans: {free: {}}\n",
            ["line 1: tenants.t.plan: there is no plan gold"],
        ),
        (
            "tenants: {t: {class: P0, plan: gold}}\n",
            ["line 1: tenants.t.plan: there is no plan gold"],
        ),
        ("tasks: {t: {class: P9}}\n", ["line 1: tasks.t.class: there is no class P9"]),
        (
            "identity:\n  sources:\n    - {}\n",
            ["line 3: identity.sources.0: give exactly one of metadata, header, api_key"],
        ),
        (
            "pools: {m: {endpoints: {}}}\n",
            ["line 1: pools.m.endpoints: give exactly one of static, dns (with port), file"],
        ),
        (
            "pools: {m: {endpoints: {dns: x}}}\n",
            ["line 1: pools.m.endpoints: dns and port go together"],
        ),
        (
            "pools: {m: {endpoints: {static: ['a:1', 'a:1']}}}\n",
            ["line 1: pools.m.endpoints: an endpoint is listed twice"],
        ),
        (
            "pools: {m: {endpoints: {static: ['a']}}}\n",
            [
                (
                    "line 1: pools.m.endpoints.static.0 = 'a': write host:port, the port from 1 to "
                    "65535, or unix:///absolute/path where a socket is accepted"
                )
            ],
        ),
        (
            "pools: {m: {endpoints: {static: ['unix:///a']}}}\n",
            [
                "line 1: pools.m.endpoints: unix:///a: an engine is reached over TCP, write host:port"
            ],
        ),
        (
            "pools: {m: {aliases: [x], endpoints: {static: ['a:1']}}, x: {endpoints: {static: ['b:1']}}}\n",
            ["line 1: pools: the model name x means two pools"],
        ),
        (
            "pools: {m: {endpoints: {static: ['a:1']}, scrape: {stale_after: 100ms}}}\n",
            ["line 1: pools.m.scrape: stale_after under interval would make every reading stale"],
        ),
        (
            "pools: {m: {endpoints: {static: ['a:1']}, scrape: {unknown_after: 1s}}}\n",
            ["line 1: pools.m.scrape: unknown_after must be over stale_after"],
        ),
        (
            "fallback: {finish_reason: pause_turn}\n",
            [
                (
                    "line 1: fallback.finish_reason = 'pause_turn': pause_turn makes Anthropic clients "
                    "resend in a tight loop"
                )
            ],
        ),
        (
            "fallback: {message: {en: 'in {minutes}'}}\n",
            [
                (
                    "line 1: fallback.message.en = 'in {minutes}': only {seconds} can be filled in; "
                    "write { as {{"
                )
            ],
        ),
        (
            "fallback: {overrides: [{kind: error}]}\n",
            ["line 1: fallback.overrides.0: select by at least one of reason, class, tenant"],
        ),
        (
            "fallback: {overrides: [{kind: error, reason: admitted}]}\n",
            ["line 1: fallback.overrides.0: admitted refuses nothing, there is no reply to it"],
        ),
        (
            "fallback: {overrides: [{kind: fallback, tenant: t, status: 429}]}\n",
            ["line 1: fallback.overrides.0: status goes with kind: error"],
        ),
        (
            "fallback: {overrides: [{kind: error, class: P9}]}\n",
            ["line 1: fallback.overrides.0.class: there is no class P9"],
        ),
        (
            "envoy: {message_timeout: 10s}\n",
            ["line 1: envoy.message_timeout: must be over classes.P0.max_wait"],
        ),
        (
            "fallback: {message: {en: '{seconds.__class__}'}}\n",
            [
                (
                    "line 1: fallback.message.en = '{seconds.__class__}': only {seconds} can be "
                    "filled in; write { as {{"
                )
            ],
        ),
        (
            "tasks: {a: {match: {path: /x}}, b: {match: {path: /x}}}\n",
            ["line 1: tasks: the path /x means two tasks"],
        ),
        ("? [a, b]\n: 1\n", ["line 1: yaml: a key must be plain text"]),
        (
            'classes: {"P\\n0": {}}\n',
            [
                (
                    "line 1: classes.P\n0.[key] = 'P\\n0': String should match pattern "
                    "'^[A-Za-z0-9_.-]{1,64}$'"
                )
            ],
        ),
        ("a: 1\na: 2\n", ["line 2: yaml: the key a is written twice"]),
        (
            "requests: {max_body: 2GiB}\n",
            [
                "line 1: requests.max_body = '2GiB': Input should be less than or equal to 1073741824"
            ],
        ),
        (
            "envoy: {stream_idle_timeout: 99999999999h}\n",
            [
                (
                    "line 1: envoy.stream_idle_timeout = '99999999999h': Input should be less than "
                    "or equal to 1000000000"
                )
            ],
        ),
        (
            "classes: {P0: {weight: .inf}}\n",
            ["line 1: classes.P0.weight = inf: Input should be a finite number"],
        ),
        (
            "identity: {sources: [{header: null}]}\n",
            ["line 1: identity.sources.0: give exactly one of metadata, header, api_key"],
        ),
        ("\na: !!bool x\n", ["line 2: yaml: the value does not fit its kind"]),
        ("a: !!int ''\n", ["line 1: yaml: the value does not fit its kind"]),
        ("a: 2020-99-99\n", ["line 1: yaml: the value does not fit its kind"]),
        ("a: !!map [b]\n", ["line 1: yaml: expected a map"]),
        ("a: !!map b\n", ["line 1: yaml: expected a map"]),
        ("tenants: !!map x\n", ["line 1: yaml: expected a map"]),
        (
            'identity: {sources: [{api_key: {file: "a\\0"}}]}\n',
            ["line 1: yaml: a text must not hold NUL or half a character"],
        ),
        (
            'identity: {default_tenant: "\\ud800"}\n',
            ["line 1: yaml: a text must not hold NUL or half a character"],
        ),
        (
            f"classes: {{P0: {{max_tokens: {'9' * 400}}}}}\n",
            ["line 1: yaml: the number is too large"],
        ),
        (
            f"classes: {{P0: {{max_tokens: {'9' * 5000}}}}}\n",
            ["line 1: yaml: the value does not fit its kind"],
        ),
        ("a: [\n", ["line 2: yaml: expected the node content, but found '<stream end>'"]),
        (
            "envoy: {valve: {through: 300}}\n",
            ["line 1: envoy.valve: first must be at least twice through, or it would hide a flood"],
        ),
        ("- a\n", ["line 1: file: Input should be a valid dictionary or instance of Config"]),
    ],
)
def test_what_is_wrong_is_said_with_line_path_value_and_reason(
    text: str, expected: list[str]
) -> None:
    assert problems(text) == expected


def test_several_problems_are_found_in_one_go() -> None:
    found = problems("listen: {http: x}\nclasses: {P0: {max_tokens: 0}}\nnonsense: 1\n")

    assert [each.split(":")[0] for each in found] == ["line 1", "line 2", "line 3"]


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse("").listen.http = "x:1"


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    try:
        config = parse(text)
    except ConfigError:
        return
    assert isinstance(config, Config)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"])
def test_a_file_that_cannot_be_read_is_a_config_error(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "tidegate.yaml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError) as raised:
        load(file)

    (problem,) = raised.value.problems
    assert problem.reason == ("No such file or directory" if content is None else "is not UTF-8")
    assert raised.value.file == file


def keys(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "keys.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "tidegate.yaml").write_text(
        "identity: {sources: [{api_key: {file: keys.yaml}}, {header: {name: X-Tenant}}]}\n"
    )
    return load_keys(load(tmp_path / "tidegate.yaml"))


def test_keys_are_found_beside_the_configuration(tmp_path: Path) -> None:
    assert keys(tmp_path, f"{'AB' * 32}: pay\n") == {"ab" * 32: "pay"}


@pytest.mark.parametrize(
    "text", ["sk-secret: pay\n", "- sk-secret\n", f"{'ab' * 32}: 1\n", "a: [sk-secret\n"]
)
def test_a_bad_key_file_is_an_error_that_names_no_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        keys(tmp_path, text)

    assert "sk-secret" not in str(raised.value)
    assert "keys.yaml" in str(raised.value)


def test_plans_are_what_the_core_limits_by() -> None:
    config = parse(
        "plans:\n"
        "  gold: {requests_per_minute: 600, tokens_per_minute: 9000, burst: 1.5, quota: {tokens: 7}}\n"
        "  all: {}\n"
    )

    assert plans(config) == {
        "gold": Plan("gold", Rate(600, 1.5), Rate(9000, 1.5), 7),
        "all": Plan("all"),
    }


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://r", RedisAddress("r", 6379, "", False, "", "", 0)),
        ("redis://:s%40@r:7/2", RedisAddress("r", 7, "", False, "", "s@", 2)),
        ("rediss://u:p@[::1]:7/", RedisAddress("::1", 7, "", True, "u", "p", 0)),
        ("unix:///run/redis.sock", RedisAddress("", 6379, "/run/redis.sock", False, "", "", 0)),
    ],
)
def test_where_redis_is(url: str, address: RedisAddress) -> None:
    assert parse(f"state: {{redis: '{url}'}}").state.redis == url
    assert parse_redis_url(url) == address


@pytest.mark.parametrize(
    "url",
    ["r:6379", "http://r", "redis://", "unix:", "redis://r/x", "redis://r:99999", "redis://r?db=1"],
)
def test_where_redis_cannot_be(url: str) -> None:
    (problem,) = problems(f"state: {{redis: '{url}'}}")
    assert problem.startswith("line 1: state.redis = ")
