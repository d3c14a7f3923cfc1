"""One record for each admitted exchange, whoever tells of its end, and in whatever order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.core.capacity import Load
from extproc.core.controller import Action, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended
from extproc.edge import endings
from extproc.edge.endings import Endings

VERDICT = Verdict(Action.ADMIT, Reason.ADMITTED, Load(None, 1.0, in_flight=0, endpoints=1))


def decided(ident: str) -> Decided:
    return Decided(ident, "r1", "qwen", "chat", "pay", "P0", "order", 12, 512, VERDICT, 0.001)


def logged(ident: str) -> Ended:
    return Ended(ident, "pay", "P0", "qwen", Outcome.COMPLETED, 12, 34, 1.5)


def gone(ident: str, seconds: float) -> Ended:
    return Ended(ident, "pay", "P0", "qwen", Outcome.CLIENT_GONE, None, None, seconds)


@dataclass
class Desk:
    """Endings, the clock and what was told."""

    now: float = 100.0
    told: list[Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.endings = Endings(self.told.append, lambda: self.now, grace=2.0)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.endings.sweep()


def test_the_access_log_tells_the_end_before_or_after_the_streams() -> None:
    at = Desk()
    at.endings.admitted(decided("x1"))
    at.endings.admitted(decided("x2"))
    assert repr(at.endings) == "<Endings: 2 open>"

    at.endings.logged(logged("x1"))
    at.endings.released("x1")
    at.endings.released("x2")
    at.endings.logged(logged("x2"))
    at.wait(60)

    assert at.told == [logged("x1"), logged("x2")]
    assert repr(at.endings) == "<Endings: 0 open>"


def test_who_leaves_no_entry_is_gone_after_a_grace_and_told_once() -> None:
    at = Desk()
    at.endings.admitted(decided("x1"))
    at.now += 0.25
    at.endings.released("x1")

    at.wait(1.9)
    assert at.told == []
    at.wait(0.1)
    assert at.told == [gone("x1", 0.25)]

    at.endings.logged(logged("x1"))
    at.endings.released("x1")
    at.wait(60)
    assert at.told == [gone("x1", 0.25)]


@dataclass
class Meter:
    usage: tuple[int, int] | None
    delivered_tokens: int


@pytest.mark.parametrize(
    ("logged_tokens", "meter", "expected"),
    [
        ((12, 34), Meter((1, 2), 2), (12, 34)),
        ((None, None), Meter((7, 3), 3), (7, 3)),
        ((None, None), Meter(None, 5), (None, 5)),
        ((12, None), Meter(None, 0), (12, None)),
        ((None, None), None, (None, None)),
    ],
)
def test_what_was_seen_here_counts_where_envoy_has_read_nothing(
    logged_tokens: tuple[int | None, int | None],
    meter: Meter | None,
    expected: tuple[int | None, int | None],
) -> None:
    prompt, completion = logged_tokens
    at = Desk()
    at.endings.admitted(decided("x1"))
    at.endings.admitted(decided("x2"))
    for ident in ("x1", "x2"):
        if meter is not None:
            at.endings.metered(ident, meter)
    record = replace(logged("x1"), prompt_tokens=prompt, completion_tokens=completion)

    at.endings.logged(record)
    at.endings.released("x2")
    at.endings.flush()

    told, gone_away = at.told
    assert (told.prompt_tokens, told.completion_tokens) == expected
    assert told.outcome is Outcome.COMPLETED
    seen = (None, None) if meter is None else meter.usage or (None, meter.delivered_tokens or None)
    assert (gone_away.prompt_tokens, gone_away.completion_tokens) == seen


def test_what_we_ended_has_the_outcome_that_we_know() -> None:
    at = Desk()
    for ident in ("x1", "x2"):
        at.endings.admitted(decided(ident))
        at.endings.known(ident, Outcome.EVICTED)

    at.endings.logged(logged("x1"))
    at.endings.released("x2")
    at.endings.flush()

    assert [each.outcome for each in at.told] == [Outcome.EVICTED, Outcome.EVICTED]


def test_of_what_is_over_nothing_more_is_taken_in() -> None:
    at = Desk()
    at.endings.admitted(decided("x1"))
    at.endings.logged(logged("x1"))

    at.endings.known("x1", Outcome.EVICTED)
    at.endings.metered("x1", Meter((1, 1), 1))
    at.endings.released("x1")
    at.endings.flush()

    assert at.told == [logged("x1")]


def test_an_exchange_that_goes_on_is_waited_for() -> None:
    at = Desk()
    at.endings.admitted(decided("x1"))

    at.wait(3600)

    assert at.told == []


def test_what_was_never_admitted_has_no_end() -> None:
    at = Desk()

    at.endings.released("shed")
    at.wait(60)

    assert at.told == []


def test_an_entry_of_an_earlier_process_is_told_and_a_repeated_one_is_not() -> None:
    at = Desk()

    at.endings.logged(logged("earlier"))
    at.endings.logged(logged("earlier"))

    assert at.told == [logged("earlier")]


def test_at_the_end_of_the_process_nothing_is_left_untold() -> None:
    at = Desk()
    at.endings.admitted(decided("x1"))
    at.endings.released("x1")

    at.endings.flush()

    assert at.told == [gone("x1", 0.0)]


def test_what_is_remembered_is_bounded() -> None:
    at = Desk()
    for number in range(3 * endings.REMEMBERED):
        at.endings.logged(logged(f"x{number}"))

    told = len(at.told)
    at.endings.logged(logged(f"x{2 * endings.REMEMBERED}"))
    assert len(at.told) == told == 3 * endings.REMEMBERED
    at.endings.logged(logged("x0"))
    assert len(at.told) == told + 1, "long ago"


async def test_it_runs_until_cancelled() -> None:
    told: list[Ended] = []
    first = asyncio.Event()

    def tell(record: Ended) -> None:
        told.append(record)
        first.set()

    running = Endings(tell, asyncio.get_running_loop().time, grace=0.004)
    running.admitted(decided("x1"))
    task = asyncio.create_task(running.run())
    running.released("x1")

    await asyncio.wait_for(first.wait(), 5)
    task.cancel()
    await asyncio.wait([task])

    assert [(each.id, each.outcome) for each in told] == [("x1", Outcome.CLIENT_GONE)]
    assert task.cancelled()


async def test_who_waits_for_the_last_end_waits_no_longer() -> None:
    at = Desk()
    async with asyncio.timeout(5):
        await at.endings.all_told()
        at.endings.admitted(decided("x1"))
        waiting = asyncio.create_task(at.endings.all_told())
        await asyncio.sleep(0)
        assert not waiting.done()
        at.endings.logged(logged("x1"))
        await waiting


STEPS = st.tuples(st.sampled_from(["released", "logged", "wait"]), st.sampled_from(["a", "b"]))


@given(st.lists(STEPS, max_size=20))
def test_any_order_tells_each_end_once(steps: list[tuple[str, str]]) -> None:
    at = Desk()
    for ident in ("a", "b"):
        at.endings.admitted(decided(ident))
    for step, ident in steps:
        match step:
            case "released":
                at.endings.released(ident)
            case "logged":
                at.endings.logged(logged(ident))
            case _:
                at.wait(1.0)
        assert len({each.id for each in at.told}) == len(at.told)
    for ident in ("a", "b"):
        at.endings.released(ident)
    at.endings.flush()
    assert sorted(each.id for each in at.told) == ["a", "b"]


def test_where_entries_may_be_late_they_are_waited_for_up_to_a_minute() -> None:
    at = Desk()
    late = True
    at.endings.late = lambda: late
    at.endings.admitted(decided("x1"))
    at.endings.admitted(decided("x2"))
    at.now += 0.25
    at.endings.released("x1")
    at.wait(10)
    at.endings.released("x2")
    at.wait(49.9)
    assert at.told == []
    at.wait(0.1)
    assert at.told == [gone("x1", 0.25)]
    late = False
    at.wait(0)
    assert at.told == [gone("x1", 0.25), gone("x2", 10.25)]
