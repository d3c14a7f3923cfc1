"""The KV cache of the engine model: a pool of equal blocks.

Rules this module keeps:

* Every block is in exactly one place: blank, idle (content kept, referenced by nobody), shared
  (content under a name, referenced) or private. Blank and idle blocks count as free, as in vLLM,
  so a cached prefix that nobody uses does not show in the KV usage.
* Idle blocks are given away in the order in which they were last used, only when no blank is left.
* Private blocks have no identity: the model needs only their number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """Hands out and takes back KV blocks.

    Args:
        total: usable blocks, at least 1.
    """

    __slots__ = ("_blank", "_idle", "_private", "_references", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._blank = total
        self._private = 0
        self._idle: OrderedDict[Hashable, None] = OrderedDict()
        self._references: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return self._blank + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that somebody holds, each shared one counted once."""
        return self._private + len(self._references)

    def cached(self, names: Sequence[Hashable], limit: int) -> tuple[int, int]:
        """Look up how many leading names have their content here, ``limit`` at most.

        Returns:
            The hits, and how many of them are idle: sharing those lowers ``free``.
        """
        hits = idle = 0
        for name in names[:limit]:
            if name in self._idle:
                idle += 1
            elif name not in self._references:
                break
            hits += 1
        return hits, idle

    def share(self, names: Iterable[Hashable]) -> None:
        """Add a reference to each named block; all must be cached."""
        for name in names:
            if name in self._idle:
                del self._idle[name]
            self._references[name] = self._references.get(name, 0) + 1

    def take(self, count: int) -> None:
        """Take ``count`` private blocks; ``count`` must not exceed ``free``."""
        evicted = count - self._blank
        if evicted > 0:
            for _ in range(evicted):
                self._idle.popitem(last=False)
            self._blank += evicted
        self._blank -= count
        self._private += count

    def name(self, name: Hashable) -> bool:
        """Turn one private block into a shared one with this content.

        Returns:
            False where another block has the same content already: the block stays private.
        """
        if name in self._references or name in self._idle:
            return False
        self._private -= 1
        self._references[name] = 1
        return True

    def release(self, private: int, names: Iterable[Hashable]) -> None:
        """Give back private blocks and one reference of each name, given from the tail on.

        The tail of a prefix becomes idle first and is therefore lost first: what precedes it can
        still be hit without it, but not the other way round.
        """
        self._private -= private
        self._blank += private
        for name in names:
            left = self._references[name] - 1
            if left:
                self._references[name] = left
            else:
                del self._references[name]
                self._idle[name] = None
