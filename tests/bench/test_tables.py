from __future__ import annotations

import pytest

from bench import tables


def test_table_is_markdown() -> None:
    assert tables.table(("gateway", "ms"), [("Envoy", "1.0"), ("smg", "")]) == (
        "| gateway | ms |\n| --- | ---: |\n| Envoy | 1.0 |\n| smg |  |"
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [([1.234], "1.23"), ([3.0, 1.0, 2.0], "2.00 (1.00–3.00)"), ([1234.5, 99.99, 12.34], "100.0 (12.3–1,234)")],
)  # fmt: skip
def test_middle_is_the_median_between_the_extremes(values: list[float], text: str) -> None:
    assert tables.middle(values) == text


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # Of the medians it would be 20 / 8.
    assert tables.paired([10.0, 20.0, 30.0], [5.0, 8.0, 10.0]) == "2.50 ×"
    assert tables.paired([10.0, 20.0, 90.0], [5.0, 8.0, 10.0]) == "2.50 ×"
