"""Whole drills, small ones: nothing is lost, nothing is random, and each controller does its thing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.sim.drill.faults import FAULTS, Faults
from extproc.sim.drill.history import End, History
from extproc.sim.drill.lengths import MIXES
from extproc.sim.drill.runs import CONTROLLERS, Run, make_policy, play, play_all, world_of
from extproc.sim.drill.setting import Setting

EVERY = [f"slots:{60}" if name == "slots" else name for name in CONTROLLERS]


def run(setting: Setting, controller: str, rate: float = 60.0, faults: Faults | None = None) -> Run:
    return Run(setting, controller, MIXES["balanced"], rate, seed=3, faults=faults or Faults())


def history(played: Run) -> History:
    if played.controller == "clairvoyant":
        played = replace(played, controller="clairvoyant:0")
    return world_of(played).run()


@pytest.mark.parametrize("controller", EVERY)
def test_every_call_ends_once(setting: Setting, controller: str) -> None:
    records = history(run(setting, controller)).records
    assert len(records) == pytest.approx(600, abs=90)
    assert len({each.call.id for each in records}) == len(records)
    for each in records:
        sent = each.sent_at < float("inf")
        assert each.end is not None
        assert sent is (each.end not in (End.SHED, End.REJECTED)) or each.end is End.UNFINISHED
        if each.end is End.COMPLETED:
            assert each.call.at <= each.sent_at < each.first_at <= each.ended_at


@pytest.mark.parametrize("fault", FAULTS)
def test_every_call_ends_once_under_faults(setting: Setting, fault: str) -> None:
    faults = FAULTS[fault]
    if faults.death is not None:
        faults = replace(faults, death=(3.0, 6.0))
    if faults.outage is not None:
        faults = replace(faults, outage=(3.0, 6.0))
    if faults.counter_reset is not None:
        faults = replace(faults, counter_reset=4.0)
    records = history(run(setting, "tidegate", faults=faults)).records
    assert all(each.end is not None for each in records)
    died = sum(each.end is End.ENGINE_ERROR for each in records)
    assert (died > 0) is (faults.death is not None)


@pytest.mark.parametrize("controller", EVERY)
def test_equal_seeds_give_equal_scores(setting: Setting, controller: str) -> None:
    one, two = (repr(play(run(setting, controller))) for _ in range(2))
    assert one == two


def test_processes_change_nothing(setting: Setting) -> None:
    runs = [run(setting, "watermark"), run(setting, "none")]
    done: list[None] = []
    both = play_all(runs, 2, lambda: done.append(None))
    assert repr(both) == repr(play_all(runs, 1))
    assert len(done) == 2


def test_shed_calls_may_come_back_once(setting: Setting) -> None:
    patient = replace(setting, resubmit=1.0, tail=20.0)
    records = {each.call.id: each for each in history(run(patient, "watermark")).records}
    again = [each for each in records.values() if each.call.again]
    assert again
    for each in again:
        first = records[each.call.id.removesuffix("/2")]
        assert first.end is End.SHED
        assert each.call.at == pytest.approx(first.ended_at + 15.0)
        assert f"{each.call.id}/2" not in records


def test_who_comes_back_with_a_ticket_is_served_rather_than_others(setting: Setting) -> None:
    peak = replace(setting, warm_up=16.0, measured=20.0)
    scores = play(run(peak, "tidegate", faults=FAULTS["come-back"]))
    assert scores["back_P1"] > scores["in_time_P1"]


def test_where_the_lowest_class_may_wait_fewer_are_shed(setting: Setting) -> None:
    hasty, patient = (
        play(run(setting, "tidegate", rate=30.0, faults=FAULTS[name]))["shed_P2"]
        for name in ("none", "patient")
    )
    assert patient < hasty


def test_an_idle_pool_serves_everybody(setting: Setting) -> None:
    for controller in EVERY:
        scores = play(run(setting, controller, rate=2.0))
        assert [scores[f"in_time_{name}"] for name in ("P0", "P1", "P2")] == [1.0] * 3
        assert scores["waste"] == pytest.approx(0.0, abs=1e-9)


def test_control_beats_no_control_at_a_peak() -> None:
    setting = Setting(warm_up=10.0, measured=20.0, tail=5.0)
    scores = {name: play(run(setting, name)) for name in ("none", "tidegate", "clairvoyant")}
    assert scores["none"]["in_time_P0"] < 0.5
    assert scores["tidegate"]["in_time_P0"] == 1.0
    assert scores["tidegate"]["inversions"] == 0.0
    assert scores["none"]["goodput"] < 0.5 * scores["tidegate"]["goodput"]
    assert scores["tidegate"]["goodput"] <= 1.02 * scores["clairvoyant"]["goodput"]
    assert scores["clairvoyant"]["waste"] < 0.01


def test_an_unknown_controller_is_named(setting: Setting) -> None:
    with pytest.raises(ValueError, match="no controller magic: use none, priority"):
        make_policy(run(setting, "magic"))
