"""What the charts show: the last quarter of an hour, second by second.

Rules this module keeps:

* Pure: time is what the states say.
* What was counted while nobody looked (a gap, a restart of Tidegate) belongs to no second and is left
  out; the lines break there.
"""

from __future__ import annotations

from collections import deque

import msgspec

from extproc.control.pb import state_pb2

SECONDS = 900
"""How far back it goes."""

_LONGEST_STEP = 3
"""Seconds between two states; where there are more, it is a gap."""

_Key = tuple[str, str, str, str]


class ClassPoint(msgspec.Struct, array_like=True):
    """A class in one second: calls admitted and refused (by reason), waiting at its end, closed."""

    admitted: int
    refused: dict[str, int]
    queued: int
    closed: bool


class Point(msgspec.Struct, array_like=True):
    """A pool in one second of Unix time, its classes highest first."""

    at: int
    free_observed: float | None
    free_predicted: float | None
    in_flight: int
    queued: int
    classes: list[ClassPoint]


class History:
    """The last `SECONDS` of every pool."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._counts: dict[_Key, int] = {}
        self._instance = ""
        self._newest = 0

    def add(self, state: state_pb2.State) -> None:
        """Take in a state; states of the same second become one point."""
        at = state.at.seconds
        counts = _counts(state)
        continued = state.instance == self._instance and at - self._newest <= _LONGEST_STEP
        grown = {
            key: max(0, count - self._counts.get(key, 0)) if continued else 0
            for key, count in counts.items()
        }
        self._counts, self._instance, self._newest = counts, state.instance, at
        for pool in state.pools:
            points = self._points.setdefault(pool.name, deque())
            point = _point(at, pool, grown)
            if points and points[-1].at >= at:
                point = _together(points.pop(), point)
            points.append(point)
            while points[0].at <= at - SECONDS:
                points.popleft()
        for name in self._points.keys() - {pool.name for pool in state.pools}:
            del self._points[name]

    def since(self, at: int) -> dict[str, list[Point]]:
        """Return the points of each pool from a second on, the oldest first."""
        found = {}
        for name, points in self._points.items():
            newest_first: list[Point] = []
            for point in reversed(points):
                if point.at < at:
                    break
                newest_first.append(point)
            found[name] = newest_first[::-1]
        return found


def _counts(state: state_pb2.State) -> dict[_Key, int]:
    return {
        (pool.name, each.name, count.verdict, count.reason): count.count
        for pool in state.pools
        for each in pool.classes
        for count in each.decisions
    }


def _point(at: int, pool: state_pb2.PoolState, grown: dict[_Key, int]) -> Point:
    classes = []
    for each in pool.classes:
        admitted = 0
        refused: dict[str, int] = {}
        for count in each.decisions:
            more = grown[pool.name, each.name, count.verdict, count.reason]
            if count.verdict == "admit":
                admitted += more
            elif count.verdict in ("shed", "reject") and more:
                refused[count.reason] = refused.get(count.reason, 0) + more
        closed = each.closed or each.closed_by_mode
        classes.append(ClassPoint(admitted, refused, each.queued, closed))
    return Point(
        at,
        pool.free_observed if pool.HasField("free_observed") else None,
        pool.free_predicted if pool.HasField("free_predicted") else None,
        pool.in_flight,
        pool.queued,
        classes,
    )


def _together(older: Point, newer: Point) -> Point:
    """Return one point: counts are added up, the rest is as it was last."""
    for before, after in zip(older.classes, newer.classes, strict=False):
        after.admitted += before.admitted
        for reason, count in before.refused.items():
            after.refused[reason] = after.refused.get(reason, 0) + count
    return newer
