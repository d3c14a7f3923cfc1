from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.stop_words import StopWords


def stopped(words: tuple[str, ...], *pieces: str) -> tuple[str, str] | None:
    """Return the text before the word, and the word; check what would have been passed on."""
    looking, text, passed = StopWords(words), "", 0
    for piece in pieces:
        found = looking.feed(piece)
        if found is not None:
            at, word = len(text) + found[0], found[1]
            assert passed <= at
            return (text + piece)[:at], word
        text += piece
        passed = len(text) - looking.pending
    return None


@pytest.mark.parametrize(
    ("words", "pieces", "expected"),
    [
        (("END",), ("a END b",), ("a ", "END")),
        (("END",), ("a E", "N", "D b"), ("a ", "END")),
        (("END",), ("a EN", "EN", "D"), ("a EN", "END")),
        (("aab",), ("a", "a", "a", "b"), ("a", "aab")),
        (("\n\nEND", "STOP"), ("x\n", "\nE", "ND STOP"), ("x", "\n\nEND")),
        (("x",), ("a", "b", "x"), ("ab", "x")),
        (("停止",), ("请停", "止"), ("请", "停止")),
        # The word that is complete first counts, the longer of two that are so at once.
        (("abcdef", "cd"), ("abc", "def"), ("ab", "cd")),
        (("cd", "bcd"), ("abcd",), ("a", "bcd")),
        (("END",), ("EN", " D"), None),
        (("END",), ("",), None),
    ],
)
def test_words_over_the_borders(
    words: tuple[str, ...], pieces: tuple[str, ...], expected: tuple[str, str] | None
) -> None:
    assert stopped(words, *pieces) == expected


@pytest.mark.parametrize(
    ("text", "pending"), [("a E", 1), ("a EN", 2), ("a", 0), ("ENE", 1), ("ENEN", 2), ("", 0)]
)
def test_what_may_be_a_beginning_is_kept_back(text: str, pending: int) -> None:
    looking = StopWords(("END", "zz"))
    looking.feed(text)
    assert looking.pending == pending


@given(
    st.text(alphabet="ab", max_size=60),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_nothing_depends_on_the_pieces(text: str, words: list[str], width: int) -> None:
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    found = stopped(tuple(words), *pieces)
    assert found == stopped(tuple(words), *text)
    assert (found is None) == (not any(word in text for word in words))
