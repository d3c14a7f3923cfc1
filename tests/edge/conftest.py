"""What edge tests share: a gatekeeper that keeps books a test can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from extproc.edge.exchange import Judgement, Request, Resolution
from extproc.edge.messages import Answer, Forward, LabelResponse


@dataclass
class RecordingGatekeeper:
    """Admits, sheds, delays or fails by the body's first letter; counts what is held."""

    held: set[str] = field(default_factory=set)
    judged: list[Request] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    moves: list[tuple[str, str]] = field(default_factory=list)
    waiting: dict[str, Callable[[Resolution], None]] = field(default_factory=dict)

    def judge(self, request: Request, later: Callable[[Resolution], None]) -> Judgement:
        self.judged.append(request)
        if request.body.startswith(b"s"):
            return Judgement(Answer(200, (("content-type", "application/json"),), b"{}"))
        if request.body.startswith(b"p"):
            return Judgement(Forward())
        if request.body.startswith(b"f"):
            raise RuntimeError(f"a fault of ours with {request.body!r}")
        ident = f"x{len(self.judged)}"
        self.held.add(ident)
        if request.body.startswith(b"w"):
            self.waiting[ident] = later
            return Judgement(None, hold=(ident, "pool"))
        return self._admitted(ident)

    def let_in(self, ident: str) -> None:
        """Admit a call that waits."""
        self.waiting.pop(ident)(lambda: self._admitted(ident))

    def turn_away(self, ident: str) -> None:
        """Shed a call that waits."""

        def answer() -> Judgement:
            return Judgement(Answer(200, (("content-type", "application/json"),), b"{}"))

        self.held.remove(ident)
        self.waiting.pop(ident)(answer)

    def fail(self, ident: str) -> None:
        """Have no reply for a call that waits."""

        def broken() -> Judgement:
            raise RuntimeError("a fault of ours")

        self.waiting.pop(ident)(broken)

    def _admitted(self, ident: str) -> Judgement:
        return Judgement(
            Forward(
                body=b"rewritten", set_headers=(("content-length", "9"),), metadata=(("id", ident),)
            ),
            hold=(ident, "pool"),
            labels=LabelResponse((("x-tidegate-verdict", "admit"),)),
        )

    def served(self, hold: tuple[str, str], endpoint: str) -> None:
        self.moves.append((hold[0], endpoint))

    def release(self, hold: tuple[str, str]) -> None:
        self.held.discard(hold[0])
        self.waiting.pop(hold[0], None)
        self.released.append(hold[0])


@pytest.fixture
def gatekeeper() -> RecordingGatekeeper:
    return RecordingGatekeeper()


@pytest.fixture
def new_gatekeeper() -> type[RecordingGatekeeper]:
    return RecordingGatekeeper
