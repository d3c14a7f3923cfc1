"""The live line of `tidegate up`."""

from extproc.stand.tally import read_tally

PAGE = """\
# TYPE tidegate_decisions_total counter
tidegate_decisions_total{class="P0",pool="a",reason="admitted",verdict="admit"} 3.0
tidegate_decisions_total{class="P0",pool="b",reason="admitted",verdict="admit"} 2.0
tidegate_decisions_total{class="P0",pool="a",reason="prompt_too_long",verdict="reject"} 1.0
tidegate_decisions_total{class="P2",pool="a",reason="kv_watermark",verdict="shed"} 7.0
# TYPE tidegate_in_flight gauge
tidegate_in_flight{pool="a"} 4.0
tidegate_in_flight{pool="b"} 1.0
# TYPE tidegate_free_ratio_observed gauge
tidegate_free_ratio_observed{pool="a"} 0.5
tidegate_free_ratio_observed{pool="b"} 0.25
"""


def test_the_line_adds_pools_up_and_shows_the_fullest() -> None:
    assert read_tally(PAGE).line(("P0", "P2")) == (
        "admitted/shed P0 5/0 (1 rejected) P2 0/7 | in flight 5 | KV free 25%"
    )


def test_nothing_known_is_said_so() -> None:
    assert read_tally("").line(("P0",)) == "admitted/shed P0 0/0 | in flight 0 | KV free ?"
