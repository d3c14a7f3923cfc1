"""Rate-limit headers, in the forms of OpenAI's API."""

from __future__ import annotations

import pytest

from extproc.openai.rate_headers import duration, rate_headers, retry_headers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (1e-7, "0s"),
        (0.0001, "1ms"),
        (0.02, "20ms"),
        (0.9994, "1s"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (90.5, "1m30.5s"),
        (360.0, "6m0s"),
        (3600.0, "1h0m0s"),
        (90_061.0, "25h1m1s"),
    ],
)
def test_durations_are_as_go_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_bucket_is_told_in_three_headers() -> None:
    assert rate_headers("tokens", limit=20_000, remaining=19_895, reset=0.315) == (
        ("x-ratelimit-limit-tokens", "20000"),
        ("x-ratelimit-remaining-tokens", "19895"),
        ("x-ratelimit-reset-tokens", "315ms"),
    )


@pytest.mark.parametrize(
    ("wait", "headers"),
    [
        (0.0101, (("retry-after", "1"), ("retry-after-ms", "11"))),
        (1.0, (("retry-after", "1"), ("retry-after-ms", "1000"))),
        (1.2, (("retry-after", "2"), ("retry-after-ms", "1200"))),
        (60.0, (("retry-after", "60"), ("retry-after-ms", "60000"))),
        (60.1, (("retry-after", "61"), ("x-should-retry", "false"))),
    ],
)
def test_the_retry_hint_is_never_too_early(
    wait: float, headers: tuple[tuple[str, str], ...]
) -> None:
    assert retry_headers(wait) == headers
