"""Calls of one class in the order of virtual token counters.

Rules this module keeps:

* The tenant with the least counter is next; inside a tenant, the call that first came.
* Coming, leaving and going take O(log n): an entry that is out of date stays where it is until it
  comes to the top, or until such entries are the greater part.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from extproc.core.classes import ServiceClass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call as the queue sees it.

    Attributes:
        id: unique among those that wait.
        tenant: whose it is.
        service_class: its class.
        cost: what it will take, in tokens; see `token_cost`.
        size: bytes of its body.
        since: when it first came, seconds on the clock of ``now``; earlier than ``now`` in `offer`
            where it comes again with a ticket.
        ticketed: it comes again with a ticket.
    """

    id: str
    tenant: str
    service_class: ServiceClass
    cost: int
    size: int
    since: float
    ticketed: bool = False


class Place:
    """A call in the queue. ``number`` counts those that came; ``passes`` those that passed it."""

    __slots__ = ("call", "deadline", "number", "offered", "passes", "waits")

    def __init__(self, call: Waiting, number: int, now: float) -> None:
        self.call = call
        self.number = number
        self.offered = now
        self.deadline = now + call.service_class.max_wait
        self.passes = 0
        self.waits = True


class Tenant:
    """What a tenant of a class has got (``counter``), and what of it waits."""

    __slots__ = ("calls", "cost", "counter", "size")

    def __init__(self, counter: int) -> None:
        self.counter = counter
        self.calls = self.cost = self.size = 0


class FairLine:
    """Calls, the one of the tenant with the least counter first."""

    def __init__(self, tenants: Mapping[str, Tenant]) -> None:
        self._all = tenants
        self._backlogs: dict[str, Backlog] = {}
        # One entry per tenant, with a counter that may have risen since and a backlog that may be
        # gone; put right when it comes to the top.
        self._heap: list[tuple[int, int, str]] = []
        self._listed: set[str] = set()

    def add(self, place: Place) -> None:
        """Put a call in; its tenant's counter is already right."""
        name = place.call.tenant
        backlog = self._backlogs.get(name)
        if backlog is None:
            backlog = self._backlogs[name] = Backlog()
            if name not in self._listed:
                self._listed.add(name)
                heapq.heappush(self._heap, (self._all[name].counter, place.number, name))
        backlog.add(place)

    def remove(self, place: Place) -> None:
        """Take a call out."""
        name = place.call.tenant
        if not self._backlogs[name].remove(place):
            del self._backlogs[name]
            if 2 * len(self._backlogs) < len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2] in self._backlogs]
                heapq.heapify(self._heap)
                self._listed = set(self._backlogs)

    def first(self) -> Place | None:
        """Return the call whose turn it is."""
        heap = self._heap
        while heap:
            counter, number, name = heap[0]
            backlog = self._backlogs.get(name)
            if backlog is None:
                heapq.heappop(heap)
                self._listed.remove(name)
            elif counter < self._all[name].counter:
                heapq.heapreplace(heap, (self._all[name].counter, number, name))
            else:
                return backlog.first()
        return None

    def heads(self, most: int) -> list[Place]:
        """Return the first calls of up to ``most`` tenants, in their order."""
        found: list[Place] = []
        taken: list[tuple[int, int, str]] = []
        while len(found) < most and (head := self.first()) is not None:
            found.append(head)
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return found


class Backlog:
    """The calls of one tenant, the one that first came first."""

    __slots__ = ("_gone", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Place]] = []
        self._gone = 0

    def add(self, place: Place) -> None:
        """Put a call in."""
        heapq.heappush(self._heap, (place.call.since, place.number, place))

    def first(self) -> Place:
        """Return the call that first came; there is one."""
        while not self._heap[0][2].waits:
            heapq.heappop(self._heap)
            self._gone -= 1
        return self._heap[0][2]

    def remove(self, place: Place) -> bool:
        """Take a call out and say whether any is left."""
        place.waits = False
        self._gone += 1
        if 2 * self._gone > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].waits]
            heapq.heapify(self._heap)
            self._gone = 0
        return bool(self._heap)
