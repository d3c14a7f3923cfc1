"""Numbers that can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from extproc.sim.drill.confidence import mean
from extproc.sim.drill.history import End, History, Record
from extproc.sim.drill.report import markdown, shown
from extproc.sim.drill.score import (
    fair_shares,
    flips,
    in_time,
    inversions,
    jain,
    percentile,
    recovery,
    vtc_excess,
    waste,
)
from extproc.sim.drill.setting import Setting

MakeRecord = Callable[..., Record]


@pytest.mark.parametrize(
    ("rank", "first", "ended", "good"),
    [
        (0, 2.0, 3.0, True),  # ten more tokens in one second: just in time
        (0, 2.0, 3.01, False),
        (0, 2.01, 2.5, False),
        (1, 5.0, 6.0, True),
        (2, 15.0, 16.0, True),
        (2, 15.1, 15.2, False),
    ],
)
def test_in_time_is_first_token_and_pace(
    record: MakeRecord, setting: Setting, rank: int, first: float, ended: float, good: bool
) -> None:
    made = record("x", rank=rank, first_at=first, ended_at=ended)
    assert in_time(made, setting) is good


def test_what_was_not_completed_is_a_miss(record: MakeRecord, setting: Setting) -> None:
    assert not any(in_time(record("x", end=end), setting) for end in End if end != "completed")


def test_waste_is_what_did_not_serve(record: MakeRecord, setting: Setting) -> None:
    good = record("good")  # 100 + 11 tokens, of which the last is not computed
    late = record("late", first_at=9.0, ended_at=9.5)
    running = record("running", end=End.UNFINISHED)
    history = History(
        [good, late, running], (), computed=400, running={"running": 90}, preemptions=0
    )
    assert waste(history, setting) == pytest.approx(1.0 - (110 + 90) / 400)


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile(range(1, 101), 0.99) == 99
    assert math.isnan(percentile((), 0.5))


def shed(record: MakeRecord, *, seen: int, decided: int, epoch: int) -> Record:
    return record(
        "shed",
        rank=1,
        end=End.SHED,
        seen=seen,
        decided=decided,
        epoch=epoch,
        sent_at=math.inf,
        reason="kv_watermark",
    )


@pytest.mark.parametrize(
    ("seen", "decided", "lower_decided", "lower_epoch", "prompt", "count"),
    [
        (1, 2, 0, 0, 100, 0),  # the lower one came first
        (1, 9, 5, 0, 100, 1),  # sent while the higher one waited
        (1, 2, 5, 3, 100, 1),  # sent after it, and nothing had happened since
        (1, 2, 5, 4, 100, 0),  # something had
        (1, 9, 5, 0, 99, 0),  # it was smaller: there was no room for the higher one
    ],
)
def test_inversions(
    record: MakeRecord,
    seen: int,
    decided: int,
    lower_decided: int,
    lower_epoch: int,
    prompt: int,
    count: int,
) -> None:
    higher = shed(record, seen=seen, decided=decided, epoch=3)
    lower = record("lower", rank=2, decided=lower_decided, epoch=lower_epoch, prompt=prompt)
    assert inversions([higher, lower]) == count


def test_a_call_that_is_too_long_is_no_inversion(record: MakeRecord) -> None:
    higher = shed(record, seen=1, decided=9, epoch=3)
    higher.reason = "prompt_too_long"
    assert inversions([higher, record("lower", rank=2, decided=5)]) == 0


def test_flips_count_the_busiest_class() -> None:
    states = [(False, False), (False, True), (True, True), (False, False), None]
    assert flips(states, 30.0) == 4.0
    assert math.isnan(flips([None, None], 30.0))


def test_recovery_is_when_it_is_as_it_will_stay(record: MakeRecord, setting: Setting) -> None:
    # Ten calls a second for 30 s; those before 3.0 are shed, and of the others every tenth.
    gone = {"first_at": math.inf, "end": End.SHED}
    records = [
        record(str(n), at=n / 10, **(gone if n < 30 or n % 10 == 5 else {})) for n in range(300)
    ]
    assert recovery(records, setting, relief=1.0) == 2.0  # 45 of the 50 calls from 3.0 to 8.0
    assert recovery(records, setting, relief=4.0) == 0.0
    assert recovery(records, setting, relief=99.0) == 0.0


def test_what_keeps_failing_for_a_while_has_not_recovered(
    record: MakeRecord, setting: Setting
) -> None:
    gone = {"first_at": math.inf, "end": End.SHED}
    records = [record(str(n), at=n / 10, **(gone if n < 120 else {})) for n in range(300)]
    # From 11.9 on one call is shed still, and 49 of 50 are too few.
    assert recovery(records, setting, relief=0.0) == pytest.approx(12.0)


def test_fair_shares_give_nobody_more_than_it_wants() -> None:
    assert fair_shares({"a": 1.0, "b": 10.0, "c": 10.0}, 9.0) == {"a": 1.0, "b": 4.0, "c": 4.0}


def test_jain_is_1_where_each_has_its_due(record: MakeRecord) -> None:
    small, big = record("s", tenant="small"), [record(str(n), tenant="big") for n in range(3)]
    assert jain([small, *big]) == 1.0
    big[2].end = End.SHED  # what is left is still its due
    assert jain([small, *big]) == 1.0
    small.end = End.SHED
    # Both are due one of two calls; one has 2, the other none: (2 + 0)² / 2 · 4.
    assert jain([small, *big]) == 0.5


def test_injustice_is_what_others_got_while_one_waited(
    record: MakeRecord, setting: Setting
) -> None:
    waiting = record("w", rank=1, tenant="small", seen=0, decided=9)
    served = [record(str(n), rank=1, tenant="big", seen=n, decided=n + 4) for n in (1, 2, 3)]
    # Three calls of 100 + 2 · 11 tokens, over twice twice the caches.
    assert vtc_excess([waiting, *served], setting) == pytest.approx(3 * 122 / (4 * 2 * 2047 * 16))


def test_means_have_bounds() -> None:
    known = mean([1.0, 2.0, 3.0, math.nan])
    assert known.value == 2.0
    assert known.half == pytest.approx(2.4842, abs=1e-3)
    assert mean([0.5]).value == 0.5
    assert math.isnan(mean([]).value)
    assert mean(float(n % 2) for n in range(64)).half == pytest.approx(0.1258, abs=1e-3)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((1.0,), "100"),
        ((0.99521,), "99.52"),
        ((0.5, 0.6), "55 ±63.5"),
        ((0.0123,), "1.23"),
        ((0.0, 0.0), "0"),
        ((), "–"),
    ],
)
def test_numbers_as_text(values: tuple[float, ...], text: str) -> None:
    assert shown(mean(values)) == text


def test_markdown() -> None:
    assert markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
