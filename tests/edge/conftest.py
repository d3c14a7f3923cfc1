"""What edge tests share: a gatekeeper that keeps books a test can read, and an editor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from extproc.core.faults import Place
from extproc.edge.exchange import Judgement, Request, Resolution
from extproc.edge.faults import FaultDesk
from extproc.edge.messages import Answer, Event, Forward, LabelResponse

JSON = (("content-type", "application/json"),)
ADMITTED = LabelResponse((("x-tidegate-verdict", "admit"),))


@dataclass
class Edited:
    """See `extproc.edge.exchange.Edit`."""

    data: bytes
    finished: bool = False


class ShoutingEditor:
    """Writes in capitals, keeps ``-`` to itself, and ends the response at an ``!``; fails at a ``?``."""

    unsent = b"-"

    def feed(self, chunk: bytes, *, end: bool = False) -> Edited:
        if b"?" in chunk:
            raise RuntimeError("a fault of ours")
        said, stop, _ = chunk.upper().replace(b"-", b"").partition(b"!")
        return Edited(said + stop, finished=bool(stop))


@dataclass
class RecordingGatekeeper:
    """Admits, sheds, delays or fails by the body's first letter; counts what is held.

    Of what it admits, the answer is edited (``e``), replaced (``r``), or the call may be revoked
    (``v``) while there is none; we fail at it (``x``), or where it ends (``y``).
    """

    held: set[str] = field(default_factory=set)
    judged: list[Request] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    answers: list[tuple[str, Event]] = field(default_factory=list)
    revocable: dict[str, Callable[[Resolution], None]] = field(default_factory=dict)
    labels: LabelResponse | None = ADMITTED
    waiting: dict[str, Callable[[Resolution], None]] = field(default_factory=dict)
    faults: FaultDesk = field(default_factory=FaultDesk)

    def failed(self, place: Place, error: Exception, path: str) -> Forward | Answer:
        return self.faults.met(place, error, path)

    def judge(self, request: Request, later: Callable[[Resolution], None]) -> Judgement:
        self.judged.append(request)
        if request.body.startswith(b"s"):
            return Judgement(Answer(200, JSON, b"{}"))
        if request.body.startswith(b"p"):
            return Judgement(Forward())
        if request.body.startswith(b"f"):
            raise RuntimeError(f"a fault of ours with {request.body!r}")
        ident = f"x{len(self.judged)}"
        self.held.add(ident)
        if request.body.startswith(b"w"):
            self.waiting[ident] = later
            return Judgement(None, hold=(ident, "pool"))
        if request.body.startswith(b"v"):
            self.revocable[ident] = later
            return replace(self._admitted(ident), revocable=True)
        return self._admitted(ident)

    def revoke(self, ident: str) -> None:
        """Answer a call that was admitted, after all."""
        answer = Judgement(Answer(200, JSON, b"{}"), hold=(ident, "pool"))
        self.revocable.pop(ident)(lambda: answer)

    def let_in(self, ident: str) -> None:
        """Admit a call that waits."""
        self.waiting.pop(ident)(lambda: self._admitted(ident))

    def turn_away(self, ident: str) -> None:
        """Shed a call that waits."""

        def answer() -> Judgement:
            return Judgement(Answer(200, JSON, b"{}"))

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
            labels=self.labels,
        )

    def answered(self, hold: tuple[str, str], event: Event) -> Answer | ShoutingEditor | None:
        self.answers.append((hold[0], event))
        match self.judged[int(hold[0][1:]) - 1].body[:1]:
            case b"e":
                return ShoutingEditor()
            case b"r":
                return Answer(200, JSON, b"{}")
            case b"x":
                raise RuntimeError("a fault of ours")
            case _:
                return None

    def release(self, hold: tuple[str, str]) -> None:
        self.held.discard(hold[0])
        if self.judged[int(hold[0][1:]) - 1].body.startswith(b"y"):
            raise RuntimeError("a fault of ours")
        self.waiting.pop(hold[0], None)
        self.released.append(hold[0])


@pytest.fixture
def gatekeeper() -> RecordingGatekeeper:
    return RecordingGatekeeper()


@pytest.fixture
def new_gatekeeper() -> type[RecordingGatekeeper]:
    return RecordingGatekeeper
