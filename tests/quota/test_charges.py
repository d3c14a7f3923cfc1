"""What a call costs, by how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.outcomes import End, Outcome
from extproc.quota.charges import Charge, Estimate, charge, estimate

BEFORE = Estimate(prompt=10, output=90)


def test_before_it_goes_a_call_costs_its_prompt_and_the_longest_output(desk: Any) -> None:
    assert estimate(desk.call("x", None, prompt=10, output=90, choices=3), desk.pool) == Estimate(
        10, 270
    )
    assert estimate(desk.call("x", None, output=0), desk.pool) == Estimate(10, 0)


def test_where_nothing_bounds_the_output_it_is_predicted(desk: Any) -> None:
    predicted = estimate(desk.call("x", None, output=None), desk.pool)

    assert predicted.prompt == 10
    assert 100 < predicted.output < 200, "the prior's median is 150"
    assert predicted.tokens == 10 + predicted.output


@pytest.mark.parametrize(
    ("end", "generated", "expected"),
    [
        (End(Outcome.COMPLETED, 12, 34), 50.0, Charge(46)),
        (End(Outcome.COMPLETED, 12, 340), 50.0, Charge(352)),
        (End(Outcome.COMPLETED, None, None), 50.4, Charge(61, estimated=True)),
        (End(Outcome.COMPLETED, 12, None), 500.0, Charge(102, estimated=True)),
        (End(Outcome.COMPLETED, None, 34), 0.0, Charge(44, estimated=True)),
        (End(Outcome.CLIENT_GONE, 12, 5), 50.0, Charge(17)),
        (End(Outcome.CLIENT_GONE), 20.0, Charge(30, estimated=True)),
        (End(Outcome.ENGINE_ERROR, 12, 34), 50.0, None),
        (End(Outcome.ENGINE_REJECTED), 50.0, None),
        (End(Outcome.TIMEOUT, 12, 34), 50.0, None),
        (End(Outcome.EVICTED, 12, 34), 50.0, None),
    ],
)
def test_the_outcome_decides_what_is_charged(
    end: End, generated: float, expected: Charge | None
) -> None:
    assert charge(BEFORE, end, generated) == expected


def test_embeddings_generate_nothing_and_that_is_no_estimate() -> None:
    assert charge(Estimate(10, 0), End(Outcome.COMPLETED, 12, None), 99.0) == Charge(12)


def test_every_outcome_has_its_charge() -> None:
    charged = {each for each in Outcome if charge(BEFORE, End(each, 1, 1), 0.0)}

    assert charged == {Outcome.COMPLETED, Outcome.CLIENT_GONE}
