"""What edge tests share: a gatekeeper that keeps books a test can read."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from extproc.edge.exchange import Judgement, Request
from extproc.edge.messages import Answer, Forward, LabelResponse


@dataclass
class RecordingGatekeeper:
    """Admits, sheds or fails by the body's first letter; counts what is held."""

    held: set[str] = field(default_factory=set)
    judged: list[Request] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def judge(self, request: Request) -> Judgement:
        self.judged.append(request)
        if request.body.startswith(b"s"):
            return Judgement(Answer(200, (("content-type", "application/json"),), b"{}"))
        if request.body.startswith(b"p"):
            return Judgement(Forward())
        if request.body.startswith(b"f"):
            raise RuntimeError(f"a fault of ours with {request.body!r}")
        ident = f"x{len(self.judged)}"
        self.held.add(ident)
        return Judgement(
            Forward(
                body=b"rewritten", set_headers=(("content-length", "9"),), metadata=(("id", ident),)
            ),
            hold=(ident, "pool"),
            labels=LabelResponse((("x-tidegate-verdict", "admit"),)),
        )

    def release(self, hold: tuple[str, str]) -> None:
        self.held.remove(hold[0])
        self.released.append(hold[0])


@pytest.fixture
def gatekeeper() -> RecordingGatekeeper:
    return RecordingGatekeeper()


@pytest.fixture
def new_gatekeeper() -> type[RecordingGatekeeper]:
    return RecordingGatekeeper
