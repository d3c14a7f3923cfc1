"""The checker of queries itself: what it must not let pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("tidegate_no_such_total", "no such series: tidegate_no_such_total"),
        ("rate(tidegate_decisions[5m])", "no such series: tidegate_decisions"),
        ('tidegate_in_flight{class="P0"}', "tidegate_in_flight has no label class"),
        ('tidegate_decisions_total{verdict=~"shed|dropped"}', "verdict is never ['dropped']"),
        ("sum by (tenant) (tidegate_in_flight)", "no label to group by: tenant"),
    ],
)
def test_a_query_for_what_does_not_exist_is_found(
    problems_of: Callable[[str], list[str]], query: str, problem: str
) -> None:
    assert problems_of(query) == [problem]


def test_a_query_for_what_exists_passes(problems_of: Callable[[str], list[str]]) -> None:
    query = 'sum by (pool, le) (rate(tidegate_output_tokens_bucket{class="P0"}[5m])) > 0'
    assert problems_of(query) == []
