"""The answer of a call that others of its run follow: kept while it passes, then given to all.

Rules this module keeps:

* The leader's client gets its answer as it comes; followers get the same bytes at once when it is
  whole. Envoy takes an answer of ours in one piece only.
* A stream is kept from its first byte, because others may join until its last. What is no stream has
  its headers when it is done: it is kept only where somebody follows by then.
* Only a whole answer is shared, which the engine has ended well. What was cut, failed or grew too
  long is not.
* What is kept is bounded for each answer and for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from extproc.edge.exchange import Edit, Editor, Unedited
from extproc.openai.sse import SSE

LONGEST_ANSWER = 1 << 20
"""Bytes of one answer."""
LONGEST_TOGETHER = 64 << 20
"""Bytes of all answers that are under way."""


class Shared(msgspec.Struct, frozen=True, gc=False):
    """An answer, whole."""

    status: int
    content_type: str
    body: bytes


class Shelf:
    """Counts what is kept, in bytes."""

    def __init__(self, most: int = LONGEST_TOGETHER) -> None:
        self._most = most
        self.size = 0

    def take(self, size: int) -> bool:
        """Make room, and say whether there was."""
        if self.size + size > self._most:
            return False
        self.size += size
        return True

    def give_back(self, size: int) -> None:
        """Free what was taken."""
        self.size -= size


class Keeper:
    """Keeps an answer as it passes; an `extproc.edge.exchange.Editor`.

    Args:
        status, content_type: of the answer.
        inner: who edits it, or None.
        shelf: where it is kept.
        whole: called once when the engine has ended it.
        too_long: called once where it can be kept no longer.
    """

    def __init__(
        self,
        status: int,
        content_type: str,
        *,
        inner: Editor | None,
        shelf: Shelf,
        whole: Callable[[], None],
        too_long: Callable[[], None],
    ) -> None:
        self._status = status
        self._content_type = content_type
        self._inner = inner
        self._shelf = shelf
        self._whole = whole
        self._too_long = too_long
        self._parts: list[bytes] | None = []
        self._size = 0
        self._ended = False
        self.unsent = b""
        """See `extproc.edge.exchange.Editor`."""

    @property
    def answer(self) -> Shared | None:
        """The answer, once all of it has passed; None before, and where it was not kept."""
        if self._parts is None or not self._ended:
            return None
        return Shared(self._status, self._content_type, b"".join(self._parts))

    def feed(self, chunk: bytes, *, end: bool = False) -> Edit:
        """See `extproc.edge.exchange.Editor`."""
        edit: Edit = Unedited(chunk) if self._inner is None else self._inner.feed(chunk, end=end)
        if not self._ended:
            self._keep(edit.data)
            self._ended = end or edit.finished
            # What we ended before the engine did may have been cut. Its record will say.
            if self._ended and not edit.finished and self._parts is not None:
                self._whole()
        self.unsent = b"" if self._inner is None else self._inner.unsent
        return edit

    def drop(self) -> None:
        """Keep nothing any more."""
        if self._parts is not None:
            self._parts = None
            self._shelf.give_back(self._size)

    def _keep(self, data: bytes) -> None:
        if self._parts is None or not data:
            return
        if self._size + len(data) > LONGEST_ANSWER or not self._shelf.take(len(data)):
            self.drop()
            self._too_long()
            return
        self._size += len(data)
        self._parts.append(data)


def worth_keeping(headers: Mapping[str, str], *, followed: bool) -> bool:
    """Say whether an answer with these headers is to be kept."""
    status, content_type = headers.get(":status", ""), headers.get("content-type", "")
    if not status.isdigit() or int(status) >= 500 or status == "429":
        return False
    if headers.get("content-encoding", "identity") != "identity":
        return False
    return followed or content_type.partition(";")[0].strip().lower() == SSE
