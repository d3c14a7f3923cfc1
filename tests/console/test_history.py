"""What the charts show."""

from __future__ import annotations

from extproc.console.history import SECONDS, ClassPoint, History, Point
from extproc.control.pb import state_pb2


def state(at: float, instance: str = "a", pool: str = "qwen", **counts: int) -> state_pb2.State:
    """Return a state with one pool and the class P2; counts are named ``verdict_reason``."""
    seen = state_pb2.State(instance=instance)
    seen.at.FromMilliseconds(round(at * 1000))
    one = seen.pools.add(name=pool, free_observed=0.5, free_predicted=0.4, in_flight=3, queued=1)
    p2 = one.classes.add(name="P2", closed=True, queued=1)
    for name, count in counts.items():
        verdict, _, reason = name.partition("_")
        p2.decisions.add(verdict=verdict, reason=reason, count=count)
    return seen


def flows(history: History) -> list[tuple[int, int, dict[str, int]]]:
    return [
        (each.at, each.classes[0].admitted, each.classes[0].refused)
        for each in history.since(0)["qwen"]
    ]


def test_counts_become_what_happened_in_each_second() -> None:
    history = History()
    history.add(state(100.1, admit_admitted=50, shed_kv_watermark=7))
    history.add(state(101.1, admit_admitted=53, shed_kv_watermark=9, reject_bad_request=1))

    assert history.since(0) == {
        "qwen": [
            Point(100, 0.5, 0.4, 3, 1, [ClassPoint(0, {}, 1, True)]),
            Point(
                101, 0.5, 0.4, 3, 1, [ClassPoint(3, {"kv_watermark": 2, "bad_request": 1}, 1, True)]
            ),
        ]
    }
    assert history.since(102) == {"qwen": []}


def test_a_call_that_waits_is_neither_admitted_nor_turned_away() -> None:
    history = History()
    history.add(state(100))
    history.add(state(101, wait_waiting=5))
    assert flows(history)[-1] == (101, 0, {})


def test_states_of_one_second_are_one_point() -> None:
    history = History()
    history.add(state(100.0, shed_a=0))
    history.add(state(101.0, admit_admitted=2, shed_a=1))
    history.add(state(101.6, admit_admitted=3, shed_a=2, shed_b=1))
    assert flows(history) == [(100, 0, {}), (101, 3, {"a": 2, "b": 1})]


def test_what_was_counted_while_nobody_looked_belongs_to_no_second() -> None:
    history = History()
    history.add(state(100, admit_admitted=10))
    history.add(state(160, admit_admitted=500))
    history.add(state(161, admit_admitted=501))
    history.add(state(162, "restarted", admit_admitted=400))
    history.add(state(163, "restarted", admit_admitted=402))
    assert [admitted for _, admitted, _ in flows(history)] == [0, 0, 1, 0, 2]


def test_it_is_as_long_as_the_charts_and_forgets_pools_that_are_gone() -> None:
    history = History()
    for at in range(100, 100 + SECONDS + 50):
        history.add(state(at))
    assert [each[0] for each in flows(history)] == list(range(150, 150 + SECONDS))
    history.add(state(100 + SECONDS + 50, pool="llama"))
    assert list(history.since(0)) == ["llama"]


def test_what_is_not_known_is_nothing() -> None:
    history = History()
    unknown = state(100)
    unknown.pools[0].ClearField("free_observed")
    unknown.pools[0].ClearField("free_predicted")
    history.add(unknown)
    (point,) = history.since(0)["qwen"]
    assert (point.free_observed, point.free_predicted) == (None, None)
