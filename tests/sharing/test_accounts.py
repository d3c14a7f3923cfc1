"""The Lua twin of the buckets and holds comes to the same as the core, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.core.limits import Buckets, Plan, Rate
from extproc.sharing.link import PREFIX, Script

ACCOUNTS = Script("accounts.lua")
UNLIMITED = 1 << 60
NOW = 1_796_000_000.0


def pace(rate: Rate | None) -> list[float]:
    return [0.0, 0.0] if rate is None else [rate.interval, rate.window]


@dataclass
class Twin:
    """Calls the script as one of several Tidegates."""

    client: Any
    name: str = "one"
    alive: tuple[str, ...] = ("one", "two", "three")

    def __post_init__(self) -> None:
        self.digest = self.client.script_load(ACCOUNTS.text)

    def beat(self, now: float) -> None:
        self.client.zadd(f"{PREFIX}members", dict.fromkeys(self.alive, now))

    def __call__(self, now: float, *operations: list[Any], name: str | None = None) -> list[Any]:
        keys = [f"{PREFIX}members", f"{PREFIX}account:a", f"{PREFIX}account:b"]
        packed = msgspec.msgpack.encode([name or self.name, 5.0, now, list(operations)])
        there, replies = msgspec.msgpack.decode(self.client.evalsha(self.digest, 3, *keys, packed))
        if now >= 0:
            assert there == now
        return list(replies)


def operation(
    plan: Plan,
    requests: int,
    tokens: int,
    *,
    asks: bool = True,
    account: int = 2,
    free: int = UNLIMITED,
    held: int = 0,
    full_in: tuple[float, float] = (0.0, 0.0),
) -> list[Any]:
    paces = (*pace(plan.requests), *pace(plan.tokens))
    return [account, asks, *paces, requests, tokens, free, held, *full_in]


RATES = st.none() | st.builds(Rate, st.integers(1, 1_000_000), st.floats(1.0, 4.0))
STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 40.0),
        st.booleans(),
        st.integers(0, 2_000),
        st.integers(-2_000, 2_000),
        st.sampled_from((2, 3)),
    ),
    min_size=1,
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=RATES, tokens=RATES, steps=STEPS)
def test_buckets_are_the_same_on_the_same_trace(
    requests: Rate | None,
    tokens: Rate | None,
    steps: list[tuple[float, bool, int, int, int]],
    server: Any,
) -> None:
    with server.client as client:
        client.flushall()
        twin, buckets, plan, now = Twin(client), Buckets(), Plan("p", requests, tokens), NOW
        for pause, asks, size, correction, account in steps:
            now += pause
            if asks:
                (reply,) = twin(now, operation(plan, 1, size, account=account))
                short = buckets.take(str(account), plan, size, now)
                assert reply[0] is (short is None)
            else:
                (reply,) = twin(now, operation(plan, 0, correction, asks=False, account=account))
                buckets.correct(str(account), plan, 0, correction, now)
                assert reply[0] is True
            for mine, theirs, rate in zip(
                buckets.full_at(str(account)), reply[1:3], (requests, tokens), strict=True
            ):
                if rate is not None:
                    assert max(mine, now) == max(theirs, now)


def test_operations_of_one_round_trip_see_each_other(server: Any) -> None:
    plan = Plan("p", Rate(2), Rate(100))
    with server.client as client:
        twin = Twin(client)
        replies = twin(NOW, *[operation(plan, 1, 10) for _ in range(4)])
        assert [each[0] for each in replies] == [True, True, False, False]
        replies = twin(
            NOW, operation(plan, -1, -10, asks=False), operation(plan, 1, 10, account=3),
            operation(plan, 1, 10), operation(plan, 1, 10),
        )  # fmt: skip
        assert [each[0] for each in replies] == [True, True, True, False]


def test_sixty_four_holds_of_three_tidegates_exceed_one_balance_by_nothing(server: Any) -> None:
    plan = Plan("p")
    with server.client as client:
        twin = Twin(client)
        twin.beat(NOW)
        held = {"one": 0, "two": 0, "three": 0}
        for number in range(64):
            name = ("one", "two", "three")[number % 3]
            mine = held[name]
            asked = operation(plan, 1, 100, free=2_345 - mine, held=mine)
            (reply,) = twin(NOW, asked, name=name)
            held[name] += 100 * reply[0]
            assert reply[3] == sum(held.values()) - held[name]
        assert sum(held.values()) == 2_300


def test_holds_of_one_round_trip_exceed_one_balance_by_nothing(server: Any) -> None:
    with server.client as client:
        replies = Twin(client)(NOW, *[operation(Plan("p"), 1, 100, free=2_345) for _ in range(64)])
        assert [each[0] for each in replies].count(True) == 23
        assert client.hget(f"{PREFIX}account:a", "one") == b"2300"


HOLDERS = st.lists(
    st.tuples(
        st.sampled_from(("one", "two", "three")), st.sampled_from("hhhe"), st.integers(0, 500)
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(quota=st.integers(0, 3_000), steps=HOLDERS)
def test_holds_are_those_of_a_plain_model(
    quota: int, steps: list[tuple[str, str, int]], server: Any
) -> None:
    with server.client as client:
        client.flushall()
        twin, plan, spent = Twin(client), Plan("p"), 0
        twin.beat(NOW)
        held: dict[str, list[int]] = {"one": [], "two": [], "three": []}
        for name, step, tokens in steps:
            mine = sum(held[name])
            if step == "h":
                fits = spent + sum(map(sum, held.values())) + tokens <= quota
                asked = operation(plan, 1, tokens, free=quota - spent - mine, held=mine)
                (reply,) = twin(NOW, asked, name=name)
                assert reply[0] is fits
                if fits:
                    held[name].append(tokens)
            elif held[name]:
                spent += min(held[name].pop(0), tokens)
                told = operation(plan, 0, 0, asks=False, held=sum(held[name]))
                (reply,) = twin(NOW, told, name=name)
            else:
                continue
            assert reply[3] == sum(sum(each) for who, each in held.items() if who != name)


def test_what_the_dead_held_is_free_again(server: Any) -> None:
    with server.client as client:
        twin = Twin(client)
        twin.beat(NOW)
        twin(NOW, operation(Plan("p"), 1, 900, free=1_000), name="two")
        asked = operation(Plan("p"), 1, 200, free=1_000)
        assert [each[::3] for each in twin(NOW + 4.9, asked)] == [[False, 900]]
        assert [each[::3] for each in twin(NOW + 5.1, asked)] == [[True, 0]]


def test_after_a_flush_what_is_known_is_there_again(server: Any) -> None:
    plan = Plan("p", Rate(60), Rate(6000))
    with server.client as client:
        twin = Twin(client)
        client.flushall()
        (reply,) = twin(NOW, operation(plan, 1, 500, held=700, full_in=(59.0, 58.0)))
        assert reply == [False, NOW + 59.0, NOW + 58.0, 0]
        assert client.hget(f"{PREFIX}account:a", "one") == b"700"
        (reply,) = twin(NOW, operation(plan, 0, 0, asks=False, full_in=(1.0, 1.0)))
        assert reply[1:3] == [NOW + 59.0, NOW + 58.0], "what is there already counts"
        assert client.hexists(f"{PREFIX}account:a", "one") is False


def test_accounts_that_nobody_uses_are_forgotten(server: Any) -> None:
    with server.client as client:
        Twin(client)(NOW, operation(Plan("p", Rate(1)), 1, 0))
        assert 3600 < client.ttl(f"{PREFIX}account:a") <= 3660


def test_the_servers_clock_counts_in_service(server: Any) -> None:
    with server.client as client:
        (reply,) = Twin(client)(-1.0, operation(Plan("p", Rate(60)), 1, 0))
        seconds, _ = client.time()
        assert abs(reply[1] - seconds) < 60


async def test_the_link_runs_scripts_that_the_server_does_not_know(
    server: Any, linked: Any
) -> None:
    link = await linked(server)
    with server.client as client:
        client.script_flush()
    operations = [operation(Plan("p", Rate(60)), 1, 0)]
    told = msgspec.msgpack.encode(["one", 5.0, NOW, operations])
    reply = await link.call(ACCOUNTS, ["members", "account:a"], told)
    there, replies = msgspec.msgpack.decode(reply)
    assert (there, replies) == (NOW, [[True, NOW + 1.0, NOW, 0]])
    assert link.round_trips == 1
