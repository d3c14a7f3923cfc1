"""Answers that are kept as they pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from extproc.edge import sharing
from extproc.edge.sharing import Keeper, Shared, Shelf, worth_keeping


@dataclass
class Change:
    data: bytes
    finished: bool = False


class Upper:
    """Edits to capitals, and ends the answer at a full stop."""

    unsent = b"held"

    def feed(self, chunk: bytes, *, end: bool = False) -> Change:
        return Change(chunk.upper(), chunk.endswith(b"."))


def kept(keeper: Keeper) -> Shared | None:
    return keeper.answer


@dataclass
class Told:
    whole: int = 0
    too_long: int = 0
    shelf: Shelf = field(default_factory=Shelf)

    def keeper(self, inner: Upper | None = None) -> Keeper:
        return Keeper(
            200,
            "application/json",
            inner=inner,
            shelf=self.shelf,
            whole=self.on_whole,
            too_long=self.on_too_long,
        )

    def on_whole(self) -> None:
        self.whole += 1

    def on_too_long(self) -> None:
        self.too_long += 1


def test_what_passes_is_kept_and_told_when_it_is_whole() -> None:
    told = Told()
    keeper = told.keeper()
    assert keeper.feed(b"ab").data == b"ab"
    assert kept(keeper) is None
    assert not told.whole
    assert keeper.feed(b"", end=True).data == b""
    assert [told.whole] == [1]
    assert kept(keeper) == Shared(200, "application/json", b"ab")
    assert told.shelf.size == 2
    keeper.drop()
    keeper.drop()
    assert told.shelf.size == 0
    assert kept(keeper) is None


def test_what_the_client_gets_is_kept_not_what_the_engine_said() -> None:
    told = Told()
    keeper = told.keeper(Upper())
    assert keeper.feed(b"ab").data == b"AB"
    keeper.feed(b"c", end=True)
    assert kept(keeper) == Shared(200, "application/json", b"ABC")


def test_an_answer_that_we_ended_is_told_by_its_record() -> None:
    told = Told()
    keeper = told.keeper(Upper())
    assert keeper.feed(b"ab.").finished
    assert told.whole == 0
    assert kept(keeper) == Shared(200, "application/json", b"AB.")
    keeper.feed(b"more", end=True)
    assert told.whole == 0
    assert kept(keeper) == Shared(200, "application/json", b"AB.")


def test_an_answer_that_is_too_long_passes_and_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "LONGEST_ANSWER", 3)
    told = Told()
    keeper = told.keeper()
    keeper.feed(b"abc")
    assert keeper.feed(b"d").data == b"d"
    assert (told.too_long, told.shelf.size) == (1, 0)
    assert keeper.feed(b"e", end=True).data == b"e"
    assert (told.too_long, told.whole, keeper.answer) == (1, 0, None)


def test_all_answers_together_are_bounded() -> None:
    told = Told(shelf=Shelf(most=3))
    first, second = told.keeper(), told.keeper()
    first.feed(b"ab")
    second.feed(b"cd")
    assert told.too_long == 1
    first.feed(b"c", end=True)
    assert told.whole == 1
    assert told.shelf.size == 3


@pytest.mark.parametrize(
    ("headers", "followed", "kept"),
    [
        ({":status": "200", "content-type": "application/json"}, True, True),
        ({":status": "200", "content-type": "application/json"}, False, False),
        ({":status": "200", "content-type": "text/event-stream; charset=utf-8"}, False, True),
        ({":status": "400", "content-type": "application/json"}, True, True),
        ({":status": "500", "content-type": "application/json"}, True, False),
        ({":status": "429", "content-type": "application/json"}, True, False),
        ({":status": "200", "content-encoding": "gzip"}, True, False),
        ({}, True, False),
    ],
    ids=str,
)
def test_what_is_worth_keeping(headers: dict[str, str], followed: bool, kept: bool) -> None:
    assert worth_keeping(headers, followed=followed) is kept
