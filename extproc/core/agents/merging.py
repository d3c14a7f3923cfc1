"""Identical calls of one run at the same time: one leads, the others follow and get its answer.

Rules this module keeps:

* A group has one leader, which goes its way as any call does, and followers, which wait for it.
* Where the leader comes to nothing, the follower that came first leads, and the rest follows it.
* A group is gone with its last member.
"""

from __future__ import annotations

from collections.abc import Hashable


class _Group:
    """``followers`` in the order in which they came; a dict, because any of them may leave."""

    __slots__ = ("followers", "key", "leader")

    def __init__(self, key: Hashable, leader: str) -> None:
        self.key = key
        self.leader = leader
        self.followers: dict[str, None] = {}


class Merging:
    """Who leads and who follows."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _Group] = {}
        self._groups: dict[str, _Group] = {}

    def __repr__(self) -> str:
        return f"<Merging: {len(self._groups)} calls>"

    def __len__(self) -> int:
        return len(self._groups)

    def can_follow(self, key: Hashable) -> bool:
        """Say whether an identical call is under way that may be followed."""
        return key in self._open

    def lead(self, key: Hashable, exchange: str) -> None:
        """Found a group, where nobody can be followed."""
        self._open[key] = self._groups[exchange] = _Group(key, exchange)

    def follow(self, key: Hashable, exchange: str) -> None:
        """Join the group."""
        group = self._groups[exchange] = self._open[key]
        group.followers[exchange] = None

    def leads(self, exchange: str) -> bool:
        """Say whether a call leads."""
        group = self._groups.get(exchange)
        return group is not None and group.leader == exchange

    def follows(self, exchange: str) -> bool:
        """Say whether a call waits for another's answer."""
        group = self._groups.get(exchange)
        return group is not None and group.leader != exchange

    def followers(self, exchange: str) -> int:
        """Return how many follow a leader."""
        group = self._groups.get(exchange)
        return 0 if group is None or group.leader != exchange else len(group.followers)

    def dissolve(self, leader: str) -> list[str]:
        """End a leader's group and return those who followed."""
        group = self._groups.pop(leader)
        del self._open[group.key]
        for exchange in group.followers:
            del self._groups[exchange]
        return list(group.followers)

    def leave(self, exchange: str) -> str | None:
        """Take a call out, if it is in a group; return who leads in its stead, or None."""
        group = self._groups.pop(exchange, None)
        if group is None:
            return None
        if exchange != group.leader:
            del group.followers[exchange]
            return None
        if not group.followers:
            del self._open[group.key]
            return None
        group.leader = next(iter(group.followers))
        del group.followers[group.leader]
        return group.leader
