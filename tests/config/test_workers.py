"""Several workers: what they need, and what differs between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.config import (
    ConfigError,
    of_worker,
    parse,
    processor_addresses,
    with_workers,
)

SHARED = """\
listen: {processor: 'unix:///run/t/extproc.sock', workers: 3}
state: {redis: 'redis://r', outbox: /var/outbox.db}
decision_log: {file: /var/decisions.jsonl}
control: {tokens: /etc/tokens.yaml, directory: /var/control}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    return [str(problem) for problem in raised.value.problems]


def test_several_need_a_redis() -> None:
    (problem,) = problems("listen: {workers: 2}\n")
    assert problem == (
        "line 1: listen.workers: several share rates, holds, modes and tickets through Redis, so give "
        "state.redis, or have one worker"
    )


def test_several_read_their_engines_themselves() -> None:
    pool = "pools: {m: {endpoints: {static: ['a:1']}, scrape: {enabled: false}}}\n"
    assert problems(f"{SHARED}{pool}") == [
        "line 5: pools.m.scrape.enabled: load reports reach one of several workers only"
    ]


def test_there_must_be_so_many_ports() -> None:
    text = "listen: {processor: '127.0.0.1:65534', workers: %d}\nstate: {redis: 'redis://r'}\n"
    assert parse(text % 2).listen.workers == 2
    assert problems(text % 3) == [
        "line 1: listen.workers: there are not so many ports from 127.0.0.1:65534 on"
    ]


@pytest.mark.parametrize(
    ("first", "all_of_them"),
    [
        ("unix:///run/e.sock", ("unix:///run/e.sock", "unix:///run/e-2.sock", "unix:///run/e-3.sock")),
        ("unix:///a.b/e", ("unix:///a.b/e", "unix:///a.b/e-2", "unix:///a.b/e-3")),
        ("unix:///run/.e", ("unix:///run/.e", "unix:///run/.e-2", "unix:///run/.e-3")),
        ("0.0.0.0:9002", ("0.0.0.0:9002", "0.0.0.0:9003", "0.0.0.0:9004")),
        ("[::]:9002", ("[::]:9002", "[::]:9003", "[::]:9004")),
    ],
)  # fmt: skip
def test_each_has_an_address_of_its_own(first: str, all_of_them: tuple[str, ...]) -> None:
    assert processor_addresses(first, 3) == all_of_them


def test_what_only_one_process_may_have_is_numbered_and_control_is_the_firsts() -> None:
    config = parse(SHARED)
    first, third = of_worker(config, 1), of_worker(config, 3)

    assert first == config
    assert third.listen.processor == "unix:///run/t/extproc-3.sock"
    assert third.state.outbox == Path("/var/outbox-3.db")
    assert third.state.redis == "redis://r"
    assert third.decision_log is not None
    assert third.decision_log.file == Path("/var/decisions-3.jsonl")
    assert not third.control.enabled
    assert (
        of_worker(parse("listen: {workers: 2}\nstate: {redis: 'redis://r'}"), 2).decision_log
        is None
    )


def test_the_option_counts_and_is_checked_as_the_file_is() -> None:
    config = parse(SHARED)
    assert with_workers(config, 5, Path("t.yaml")).listen.workers == 5
    assert with_workers(config, 3, Path("t.yaml")) == config
    with pytest.raises(ConfigError) as raised:
        with_workers(parse(""), 2, Path("t.yaml"))
    (problem,) = raised.value.problems
    assert str(problem).startswith("--workers = 2: listen.workers: several share rates")
