"""What never ends is noticed, and what is only regular is not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.openai.runaway import (
    LEAST_REPEATED,
    LEAST_TIMES,
    LONGEST_BLANK,
    LONGEST_PERIOD,
    Repetition,
    Whitespace,
)


def stops(watch: Repetition | Whitespace, text: str, width: int) -> int | None:
    """Return after how many bytes of the text the watch stops it."""
    for at in range(0, len(text), width):
        if watch.feed(text[at : at + width]):
            return len(text[: at + width].encode())
    return None


# Repetition.

PROSE = "It was the best of times, it was the worst of times; "
LOOPS = st.one_of(
    st.text(min_size=1, max_size=LONGEST_PERIOD // 4),
    st.text(alphabet="ab", min_size=1, max_size=LONGEST_PERIOD),
    st.text(alphabet="-= |\n", min_size=1, max_size=200),
    st.text(alphabet="你好，世界。", min_size=1, max_size=LONGEST_PERIOD // 3),
)


@settings(max_examples=40)
@given(st.text(max_size=300), LOOPS, st.integers(4, 40))
def test_every_loop_is_stopped(before: str, loop: str, width: int) -> None:
    period = len(loop.encode())
    least = max(LEAST_REPEATED, LEAST_TIMES * period)
    text = before + loop * (2 * least // period + 10)
    stopped = stops(Repetition(), text, width)
    assert stopped is not None
    late = stopped - len(before.encode()) - period - least
    # At most a look, a piece, and once more the loop where it begins in a small loop of its own.
    assert late <= period + 400


def table(rows: int, chance: random.Random) -> str:
    lines = ["| item | price | stock |", "|------|-------|-------|"]
    lines += [f"| item | {chance.randrange(90):5d} | {'yes':5} |" for _ in range(rows)]
    return "\n".join(lines)


def code(rows: int, chance: random.Random) -> str:
    lines = []
    for _ in range(rows):
        depth = chance.randrange(12)
        lines.append(" " * 4 * depth + f"self.field_{chance.randrange(100)} = None")
    return "\n".join(lines)


def matrix(rows: int, chance: random.Random) -> str:
    return "\n".join(", ".join(str(chance.randrange(2)) for _ in range(40)) for _ in range(rows))


def listing(rows: int, chance: random.Random) -> str:
    return "\n".join(f"{number}. And then the same thing again." for number in range(rows))


def inserts(rows: int, chance: random.Random) -> str:
    line = "INSERT INTO order_lines (id, sku, quantity, note) VALUES ({}, 'SKU-1', 1, NULL);"
    return "\n".join(map(line.format, range(rows)))


def rows_of_json(rows: int, chance: random.Random) -> str:
    line = '  {{"id": {}, "status": "ok", "tags": [], "parent": null}},'
    return "[\n" + "\n".join(map(line.format, range(rows))) + "\n]"


def prose(rows: int, chance: random.Random) -> str:
    words = PROSE.split()
    return " ".join(chance.choice(words) for _ in range(rows * 12))


@settings(max_examples=40)
@given(
    st.sampled_from([table, code, matrix, listing, inserts, rows_of_json, prose]),
    st.integers(50, 300),
    st.integers(),
    st.integers(4, 40),
)
def test_what_is_regular_is_not_stopped(
    kind: Callable[[int, random.Random], str], rows: int, seed: int, width: int
) -> None:
    assert stops(Repetition(), kind(rows, random.Random(seed)), width) is None


@pytest.mark.parametrize(
    "meant",
    [
        "=" * 120 + "\n",
        "| " * 200,
        "\n".join(["|" + " " * 38 + "|"] * 40),
        "la " * 300,
        "A" * 1500,
        "[" + "0, " * 600 + "0]",
        PROSE * 20,
    ],
)
def test_what_repeats_and_ends_is_not_stopped(meant: str) -> None:
    assert stops(Repetition(), f"Here it is:\n{meant}\nThere it was.\n", 7) is None


def test_one_difference_now_and_then_is_news() -> None:
    text = "".join(f"{PROSE * 3}{number}. " for number in range(200))
    assert stops(Repetition(), text, 5) is None


def test_a_longer_passage_than_is_kept_is_not_noticed() -> None:
    chance = random.Random(0)
    passage = "".join(chance.choice("abcdefghij ") for _ in range(LONGEST_PERIOD + 200))
    assert stops(Repetition(), passage * 12, 9) is None


def test_a_loop_in_one_piece() -> None:
    watch = Repetition()
    assert not watch.feed("ab" * 40_000)
    assert watch.feed("ab" * 1000)


# Whitespace.


@pytest.mark.parametrize("blank", [" ", "\n", "\t", "\r\n", " \n", "\u3000"])
@pytest.mark.parametrize("width", [1, 7, 600])
def test_blanks_without_end_are_stopped(blank: str, width: int) -> None:
    text = '{"a": 1,' + blank * LONGEST_BLANK
    assert stops(Whitespace(), text, width) is not None


@pytest.mark.parametrize(
    "text",
    [
        " " * (LONGEST_BLANK - 1) + "x" + " " * (LONGEST_BLANK - 1),
        "".join(" " * 100 + "}\n" for _ in range(100)),
        "\n\n\n\nword" * 300,
        "",
    ],
)
@pytest.mark.parametrize("width", [1, 7, 600])
def test_indentation_and_empty_lines_are_not_stopped(text: str, width: int) -> None:
    assert stops(Whitespace(), text, width) is None
