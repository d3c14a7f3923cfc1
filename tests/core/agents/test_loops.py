"""Which calls a run has made, and when they go in circles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.agents.loops import REMEMBERED, Repeats


def made(calls: str) -> Repeats:
    repeats = Repeats()
    for each in calls:
        repeats.add(each.encode())
    return repeats


def test_the_same_call_is_counted() -> None:
    repeats = made("abab a".replace(" ", ""))
    assert [repeats.made(each) for each in (b"a", b"b", b"c")] == [3, 2, 0]


@pytest.mark.parametrize(
    ("before", "pairs"),
    [
        ("", 0),
        ("a", 0),
        ("ab", 1),
        ("abab", 2),
        ("xababab", 3),
        ("abcab", 1),
        ("aab", 1),
        ("ba", 0),
    ],
)
def test_turns_of_two_are_counted_up_to_now(before: str, pairs: int) -> None:
    assert made(before).alternations(b"a") == pairs


def test_the_same_call_alone_takes_no_turns() -> None:
    assert made("aaaa").alternations(b"a") == 0


def test_what_was_turned_away_was_not_made() -> None:
    repeats = made("aab")
    repeats.undo(b"b")
    repeats.undo(b"a")
    repeats.undo(b"never")
    assert (repeats.made(b"a"), repeats.made(b"b"), len(repeats)) == (1, 0, 1)
    assert repeats.alternations(b"b") == 0


@given(st.lists(st.integers(0, 60), max_size=200))
def test_memory_is_bounded_and_the_latest_are_known(calls: list[int]) -> None:
    repeats = Repeats()
    for each in calls:
        repeats.add(bytes([each]))
    assert len(repeats) <= REMEMBERED
    assert all(repeats.made(bytes([each])) >= 1 for each in calls[-1:])
