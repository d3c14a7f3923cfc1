"""What passes between an answer's editor and whoever moves the bytes.

Rules:
- Bytes that nothing has to change for pass as they came.
- An answer that we end, ends so that its client takes it for a whole one; where that cannot be, it
  is not ended at all, and the caller cuts the connection or leaves the answer alone.
- An editor keeps nothing of the request but what is in ``Asked``: it lives as long as the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from extproc.openai import lax
from extproc.openai.calls import Call
from extproc.openai.endpoints import Endpoint
from extproc.openai.usage import Usage


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What of a call its answer has to do with.

    Attributes:
        endpoint: where it came in.
        choices: how many texts the engine will generate.
        include_usage: the client asked for a stream to end in a chunk with the usage.
        structured: the client expects JSON, a tool call or a grammar.
        prompt_tokens: an estimate, told where the engine has not told better.
    """

    endpoint: Endpoint
    choices: int = 1
    include_usage: bool = False
    structured: bool = False
    prompt_tokens: int = 1

    @classmethod
    def by(cls, call: Call) -> Asked:
        """Return what matters of a call."""
        # ``Call.choices`` is what the engine may have to do; it generates ``n``, whatever best_of says.
        n = max(1, lax.integer(call.limited.n, "n") or 1)
        best_of = lax.integer(call.members.best_of, "best_of") or 1
        return cls(
            endpoint=call.endpoint,
            choices=max(1, call.choices // max(n, best_of) * n),
            include_usage=call.include_usage,
            structured=call.structured,
            prompt_tokens=call.prompt_tokens,
        )


class Edit(msgspec.Struct, frozen=True, gc=False):
    """What goes to the client in place of what came.

    Attributes:
        data: the bytes.
        finished: with them the client has a whole answer; nothing may follow, and what the engine
            still generates is for nobody.
    """

    data: bytes
    finished: bool = False


class Ending(msgspec.Struct, frozen=True):
    """How an answer is to end that we cut.

    Attributes:
        finish_reason: what the client is told, in the place where its endpoint tells it.
        message: said after the text so far; empty: nothing is said.
        note: told beside, such as the reason, under a key of ours.
        fallback: a whole body of the answer's content type, for the case that none of the answer
            was passed on yet; empty: then it is not ended.
    """

    finish_reason: str
    message: str = ""
    note: Mapping[str, str] | None = None
    fallback: bytes = b""


class Editor(ABC):
    """Edits one answer on its way from the engine to the client."""

    @abstractmethod
    def feed(self, chunk: bytes, *, end: bool = False) -> Edit:
        """Take the next bytes from the engine; ``end``: they are the last. Never raises.

        After an edit that is ``finished`` whatever comes is dropped.
        """

    @abstractmethod
    def cut(self, ending: Ending) -> Edit | None:
        """End the answer now; ``None`` where it cannot end well.

        That is so after any part of a tool call, which clients would complete and run; in the
        middle of structured output; where the answer could not be read. It is not edited then, and
        may go on. An answer that had ended by itself is only finished.
        """

    @property
    def unsent(self) -> bytes:
        """What ``feed`` had taken and not passed on when it last returned, as it may still be sent."""
        return b""

    @property
    @abstractmethod
    def cuttable(self) -> bool:
        """Whether ``cut`` would end the answer well, given a fallback for one that has not begun."""

    @property
    @abstractmethod
    def usage(self) -> Usage | None:
        """What the engine has reported so far."""

    @property
    @abstractmethod
    def delivered_tokens(self) -> int:
        """Tokens of output passed on, as far as that can be told: of a stream, its deltas."""

    @property
    @abstractmethod
    def finish(self) -> str | None:
        """Why the answer ended, as its client was told; ``error`` for an error inside of it."""
