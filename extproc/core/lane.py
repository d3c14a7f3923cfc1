"""The calls of one class that wait: how they take turns, and how fast they go.

Rules this module keeps:

* Tenants share by virtual token counters (VTC: Sheng et al., Fairness in Serving Large Language
  Models, OSDI 2024). A tenant that was idle is lifted to the least active counter, so that idling
  saves nothing up.
* Calls with a ticket go before what came after they first came, until tickets have had
  `TICKET_SHARE` of what the class admitted: newcomers are never shut out.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

from extproc.core.classes import ServiceClass
from extproc.core.fair_line import FairLine, Place, Tenant, Waiting

SHARE_WINDOW = 10.0
"""Seconds; time constant of the window in which classes share, and drain rates are measured."""
TICKET_SHARE = 0.5
"""Share of a class's admitted cost, 0..1, up to which tickets go before newer arrivals."""
GIVEN_WAY_AFTER = 0.1
"""Share of its longest wait, 0..1, after which a call that waits has the lower classes give way.
By half of it, 12 calls in 80 minutes of the drill were shed after a lower one had gone before them."""
_FEW_TENANTS = 64


class Decaying:
    """A sum whose parts are forgotten by and by: a sliding window of `SHARE_WINDOW` seconds."""

    __slots__ = ("_at", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = -math.inf

    def add(self, amount: float, now: float) -> None:
        """Add a part."""
        self._sum = self.at(now) + amount
        self._at = now

    def at(self, now: float) -> float:
        """Return what is left of the sum at ``now``."""
        return self._sum and self._sum * math.exp((self._at - now) / SHARE_WINDOW)


class Lane:
    """The calls of one class.

    Attributes:
        places: in the order they were offered, so also in that of their deadlines.
        size: bytes of their bodies.
        short: a call was shed since the lane was last empty.
        served: token cost that was admitted within the window.
    """

    def __init__(self, service_class: ServiceClass) -> None:
        self.service_class = service_class
        self.places: OrderedDict[str, Place] = OrderedDict()
        self.size = 0
        self.short = False
        self.served = Decaying()
        self._cost = 0
        self._tenants: dict[str, Tenant] = {}
        self._active = 0
        self._forget_at = _FEW_TENANTS
        self._last_counter = 0
        self._ordinary = FairLine(self._tenants)
        self._ticketed = FairLine(self._tenants)
        self._tickets_served = Decaying()
        self._marked = -math.inf
        self._backlogged = Decaying()
        self._drained = Decaying()

    def __repr__(self) -> str:
        short = ", short" if self.short else ""
        return f"{self.service_class.name} {len(self.places)} of {self._active} tenants{short}"

    def deadline(self) -> float:
        """Return when the first call will have waited too long, or infinity."""
        return next(iter(self.places.values())).deadline if self.places else math.inf

    def needs_all(self, now: float) -> bool:
        """Say whether lower classes must give way."""
        left = (1.0 - GIVEN_WAY_AFTER) * self.service_class.max_wait
        return self.short or self.deadline() - now <= left

    def share(self, now: float) -> float:
        """Return what this class got within the window, by its weight."""
        return self.served.at(now) / self.service_class.weight

    def held_by(self, tenant: str) -> tuple[int, int]:
        """Return how many calls of a tenant wait, and the bytes of their bodies."""
        known = self._tenants.get(tenant)
        return (known.calls, known.size) if known else (0, 0)

    def add(self, place: Place) -> None:
        """Put a call in."""
        call = place.call
        tenant = self._tenants.get(call.tenant)
        if tenant is None or not tenant.calls:
            tenant = self._wake(call.tenant, tenant)
        tenant.calls += 1
        tenant.cost += call.cost
        tenant.size += call.size
        self.places[call.id] = place
        self.size += call.size
        self._cost += call.cost
        self._line(call).add(place)

    def remove(self, place: Place) -> None:
        """Take a call out, whatever becomes of it."""
        call = place.call
        tenant = self._tenants[call.tenant]
        tenant.calls -= 1
        tenant.cost -= call.cost
        tenant.size -= call.size
        del self.places[call.id]
        self.size -= call.size
        self._cost -= call.cost
        self._line(call).remove(place)
        if not tenant.calls:
            self._active -= 1
        if not self.places:
            self.short = False
            self._last_counter = tenant.counter

    def charge(self, call: Waiting, now: float) -> None:
        """Book a call that goes on its tenant and class."""
        self._tenants[call.tenant].counter += call.cost
        self.served.add(call.cost, now)
        if call.ticketed:
            self._tickets_served.add(call.cost, now)

    def in_turn(self, others: int, now: float) -> Iterator[Place]:
        """Yield whose turn it is, then up to ``others`` of other tenants."""
        tickets_first = self._tickets_go_first(now)
        first, second = (
            (self._ticketed, self._ordinary) if tickets_first else (self._ordinary, self._ticketed)
        )
        seen: set[str] = set()
        for line, most in ((first, 1), (first, others + 1), (second, others + 1)):
            for place in line.heads(most):
                if place.call.tenant not in seen and len(seen) <= others:
                    seen.add(place.call.tenant)
                    yield place

    def _tickets_go_first(self, now: float) -> bool:
        ticketed, ordinary = self._ticketed.first(), self._ordinary.first()
        if ticketed is None or ordinary is None:
            return ordinary is None
        within = self._tickets_served.at(now) <= TICKET_SHARE * self.served.at(now)
        return within and ticketed.call.since < ordinary.call.since

    # How fast calls go.

    def pass_time(self, now: float) -> None:
        """Count the time up to ``now`` as waited in, where anybody has; call before any change."""
        if self.places:
            self._backlogged.add(now - self._marked, now)
        self._marked = now

    def drain(self, cost: int, now: float) -> None:
        """Count what this class, or one under it, got while this one waits."""
        if self.places:
            self._drained.add(cost, now)

    def predicted_wait(self, tenant: str, now: float) -> float:
        """Return the seconds until a tenant's next call would go.

        What goes first is the tenant's backlog and as much of each other tenant's, at most all. The
        rate is what this class and those under it got while it waited, since those would give way;
        one more call is added to that, so that a standstill is not believed at once.
        """
        if not self.places:
            return 0.0
        known = self._tenants.get(tenant)
        own = (known.cost + max(0, known.counter - self._least_counter())) if known else 0
        ahead = min(self._cost, own * max(1, self._active))
        drained = self._drained.at(now) + self._cost / len(self.places)
        return ahead * self._backlogged.at(now) / drained

    # Virtual token counters.

    def _line(self, call: Waiting) -> FairLine:
        return self._ticketed if call.ticketed else self._ordinary

    def _least_counter(self) -> int:
        """Return the least counter of those that wait; where none does, that of the last one."""
        heads = [head for line in (self._ordinary, self._ticketed) if (head := line.first())]
        counters = (self._tenants[head.call.tenant].counter for head in heads)
        return min(counters, default=self._last_counter)

    def _wake(self, name: str, tenant: Tenant | None) -> Tenant:
        """Lift a tenant that comes back to the least active counter."""
        least = self._least_counter()
        if len(self._tenants) >= self._forget_at:
            self._forget(least)
            tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(least)
        tenant.counter = max(tenant.counter, least)
        self._active += 1
        return tenant

    def _forget(self, least: int) -> None:
        """Forget tenants whose counter says nothing more: they would be lifted above it."""
        idle = [n for n, t in self._tenants.items() if not t.calls and t.counter <= least]
        for name in idle:
            del self._tenants[name]
        self._forget_at = 2 * len(self._tenants) + _FEW_TENANTS
