"""The load that engines tell beside their answers, as vLLM writes it and as it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.engines.load_report import LoadReport, read_load_report


@pytest.mark.parametrize(
    "header",
    [
        'JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}}',
        'JSON {"named_metrics":{"kv_cache_usage_perc":0.25,"num_requests_waiting":3,"more":1}}',
        "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25",
        "TEXT kv_cache_usage_perc=0.25,num_requests_waiting=3",
    ],
)
def test_both_forms(header: str) -> None:
    assert read_load_report(header) == LoadReport(0.25, 3)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "JSON",
        "JSON []",
        "JSON {}",
        'JSON {"named_metrics": {"kv_cache_usage_perc": 0.25}}',
        'JSON {"named_metrics": {"num_requests_waiting": 0, "kv_cache_usage_perc": "full"}}',
        'JSON {"named_metrics": {"num_requests_waiting": 0, "kv_cache_usage_perc": 1.5}}',
        'JSON {"named_metrics": {"num_requests_waiting": -1, "kv_cache_usage_perc": 0.5}}',
        'JSON {"named_metrics": {"num_requests_waiting": 1e300, "kv_cache_usage_perc": 0.5}}',
        "TEXT named_metrics.kv_cache_usage_perc",
        "TEXT named_metrics.kv_cache_usage_perc=nan, named_metrics.num_requests_waiting=0",
        "BIN AAAA",
        "json {}",
    ],
)
def test_what_cannot_be_read_says_nothing(header: str) -> None:
    assert read_load_report(header) is None


@given(st.one_of(st.text(), st.text().map("JSON {}".__add__), st.text().map("TEXT {}".__add__)))
def test_nothing_is_an_error(header: str) -> None:
    read_load_report(header)
