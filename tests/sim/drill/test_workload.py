"""Calls: their rates, lengths and callers, and traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from statistics import fmean, median, pstdev

import pytest

from extproc.sim.drill.lengths import MIXES, LogNormal, Percentiles
from extproc.sim.drill.setting import Setting
from extproc.sim.drill.traces import Row, TraceError, read, replay
from extproc.sim.drill.workload import Phase, arrivals, bursts, generate


def test_lognormal_has_its_mean_and_spread() -> None:
    rng = Random(1)
    drawn = [LogNormal(400.0).at(rng.gauss(0.0, 1.0)) for _ in range(40_000)]
    assert fmean(drawn) == pytest.approx(400.0, rel=0.02)
    assert pstdev(drawn) / fmean(drawn) == pytest.approx(1.0, rel=0.05)


def test_percentiles_are_met_and_never_left() -> None:
    measured = Percentiles((2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050))
    assert [round(measured.at(z)) for z in (-9.0, 0.0, 0.674490, 1.281552, 9.0)] == [
        2,
        1020,
        1189,
        2734,
        14050,
    ]


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [("azure-conv", 1020, 129), ("azure-code", 1469, 13), ("vtc-arena", 40, 211)],
)
def test_fitted_mixes_have_the_medians_of_their_traces(name: str, prompt: int, output: int) -> None:
    rng = Random(1)
    drawn = [MIXES[name].draw(rng) for _ in range(20_000)]
    assert median(each[0] for each in drawn) == pytest.approx(prompt, rel=0.1)
    assert median(each[1] for each in drawn) == pytest.approx(output, rel=0.1)


def test_arrivals_follow_the_phases() -> None:
    phases = [Phase(100.0, 0.5), Phase(50.0, 0.0), Phase(100.0, 3.0)]
    times = list(arrivals(10.0, phases, Random(1)))
    assert times == sorted(times)
    counts = Counter("first" if t < 100 else "gap" if t < 150 else "last" for t in times)
    assert counts["gap"] == 0
    assert counts["first"] == pytest.approx(500, abs=70)
    assert counts["last"] == pytest.approx(3000, abs=170)


def test_bursts_keep_the_mean_rate() -> None:
    phases = bursts(80.0)
    assert sum(phase.seconds for phase in phases) == 80.0
    assert sum(phase.seconds * phase.factor for phase in phases) == pytest.approx(80.0)
    with pytest.raises(ValueError, match="leaves nothing"):
        bursts(80.0, peak=9.0)


def test_calls_are_shared_out_as_set() -> None:
    audiences = Setting().audiences(noisy=10.0)
    calls = list(generate(range(20_000), MIXES["decode-heavy"], audiences, 1))
    classes = Counter(call.rank for call in calls)
    assert [round(classes[rank] / 20_000, 2) for rank in range(3)] == [0.2, 0.3, 0.5]
    second = Counter(call.tenant for call in calls if call.rank == 1)
    assert second["P1-0"] / second["P1-1"] == pytest.approx(10.0, rel=0.15)
    assert max(call.output for call in calls if call.rank == 0) == 512
    assert all(call.output <= call.max_tokens and call.prompt >= 1 for call in calls)
    # Ten per cent over it, a prompt would still be let in.
    assert max(call.prompt for call in calls if call.rank == 0) <= 4096 / 1.1


def test_another_rate_changes_nothing_but_the_times() -> None:
    audiences = Setting().audiences()
    slow, fast = (
        list(generate(times, MIXES["balanced"], audiences, 7)) for times in ((1, 2), (0.1, 0.2))
    )
    assert [(c.rank, c.tenant, c.prompt, c.output) for c in slow] == [
        (c.rank, c.tenant, c.prompt, c.output) for c in fast
    ]


@pytest.mark.parametrize(
    ("text", "client"),
    [
        (
            """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.0319600,4808,10
""",
            None,
        ),
        ("time_s,client,prompt_tokens,output_tokens\n1.5,7,3180,8\n0.5,7,4808,10\n", "7"),
    ],
)
def test_traces_are_read_by_their_column_names(
    tmp_path: Path, text: str, client: str | None
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    assert read(file) == [Row(0.0, 4808, 10, client), Row(1.0, 3180, 8, client)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("time,prompt\n1,2\n", "needs a column named one of: output_tokens"),
        ("time,prompt,output\n", "has no calls"),
        ("time,prompt,output\n1,many,3\n", "line 2: invalid literal"),
        ("time,prompt,output\nsoon,1,3\n", "line 2: Invalid isoformat"),
    ],
)
def test_unreadable_traces_say_why(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        read(file)


def test_a_scaled_trace_has_more_callers_at_the_same_times() -> None:
    rows = [Row(float(at), 9_000, 20, "shop" if at % 2 else "pay") for at in range(1000)]
    audiences = Setting().audiences()
    calls = list(replay(rows, 2.5, audiences, 1, longest=8192, ranks={"pay": 0}))
    assert len(calls) == pytest.approx(2500, abs=60)
    assert [call.at for call in calls] == sorted(call.at for call in calls)
    assert calls[-1].at < 1001.0
    assert {call.rank for call in calls if call.tenant == "pay"} == {0}
    assert len({call.rank for call in calls if call.tenant == "shop"}) == 1
    # The longest that the engines take, less the output.
    assert {call.prompt for call in calls if call.rank == 0} == {8192 - 512}


def test_without_clients_every_call_draws_its_class() -> None:
    rows = [Row(float(at), 10, 20, None) for at in range(2000)]
    calls = list(replay(rows, 1.0, Setting().audiences(), 1, longest=8192, ranks={}))
    shares = Counter(call.rank for call in calls)
    assert [shares[rank] / 2000 for rank in range(3)] == pytest.approx([0.2, 0.3, 0.5], abs=0.03)
    assert {call.tenant for call in calls if call.rank == 2} == {"P2-0", "P2-1", "P2-2", "P2-3"}
