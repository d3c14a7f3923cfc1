"""Which running exchanges are cut so that higher classes have room.

Rules this module keeps:

* Cuts are made where a strict call waits for room, and where the engines are about to run out of
  blocks: under the mark of the highest class that has one, with more promised than fits. Under that
  mark alone nothing is cut: the room there is what strict calls are meant to take.
* Only evictable classes are cut, the lowest first; of a class the exchange that has generated least,
  of equals the newest: least is lost, and least was promised to its client.
* At most `MOST` in one decision, from one endpoint; then nothing is cut until their blocks came
  back: each has ended and its endpoint was read again since, or was read `PATIENCE` times in vain.
  While nothing is read, nothing more is cut.
* It decides only; who executes a cut says so by the exchange's release.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from extproc.core.capacity import Pool
from extproc.core.promises import Demand, Promise

MOST = 2
"""Exchanges cut in one decision."""
PATIENCE = 10
"""Scrapes of its endpoint after which a cut exchange is not waited for any longer."""
BACK = 2
"""Scrapes after an end until its blocks show: the first may have been sent before."""


@dataclass(slots=True)
class _Cut:
    """A cut whose blocks have not come back yet; numbers of scrapes of its endpoint."""

    endpoint: str
    since: int
    ended: int | None = None


class Evictor:
    """Decides for one pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._cuts: dict[str, _Cut] = {}

    def __repr__(self) -> str:
        return f"<Evictor of {self._pool.name}: waits for {sorted(self._cuts)}>"

    def decide(
        self,
        now: float,
        *,
        wanted: Demand | None = None,
        cuttable: Container[str] | None = None,
    ) -> tuple[str, ...]:
        """Return the exchanges to cut now, if any.

        Args:
            now: the clock's time.
            wanted: a call of a strict class that found no place, or None.
            cuttable: exchanges that can be ended well at this moment; None: all.
        """
        self._settle()
        if self._cuts or not (wanted is not None or self._overflowing(now)):
            return ()
        victims = self._victims(now, cuttable)
        if not victims:
            return ()
        chosen = [each for each in victims if each.endpoint == victims[0].endpoint][:MOST]
        if wanted is not None and self._worth(chosen[0], now) >= wanted.prompt * wanted.choices:
            chosen = chosen[:1]
        for each in chosen:
            endpoint = each.endpoint or ""
            self._cuts[each.exchange] = _Cut(endpoint, self._pool.endpoints[endpoint].scrapes)
        return tuple(each.exchange for each in chosen)

    def _settle(self) -> None:
        """Forget the cuts whose blocks have come back."""
        for exchange, cut in list(self._cuts.items()):
            state = self._pool.endpoints.get(cut.endpoint)
            if state is None:
                del self._cuts[exchange]
                continue
            if cut.ended is None and self._pool.promise(exchange) is None:
                cut.ended = state.scrapes
            back = cut.ended is not None and state.scrapes >= cut.ended + BACK
            if back or state.scrapes >= cut.since + PATIENCE:
                del self._cuts[exchange]

    def _overflowing(self, now: float) -> bool:
        """Say whether the engines are about to preempt, which costs more than a cut."""
        load = self._pool.load(now)
        marks = [each.close for each in self._pool.classes if not each.strict]
        if load.free is None or load.predicted is None or not marks:
            return False
        return load.free < marks[0] * load.tightening and load.predicted < 0.0

    def _victims(self, now: float, cuttable: Container[str] | None) -> list[Promise]:
        """Return what may be cut, the first first. What no endpoint is known to have is not."""
        found = [
            each
            for each in self._pool.promises()
            if each.demand.service_class.evictable
            and each.endpoint in self._pool.endpoints
            and (cuttable is None or each.exchange in cuttable)
        ]
        found.sort(
            key=lambda each: (
                -each.demand.service_class.rank,
                self._pool.generated(each, now),
                -each.number,
            )
        )
        return found

    def _worth(self, promise: Promise, now: float) -> float:
        """Return the tokens that a cut gives back."""
        return promise.demand.choices * (promise.size + self._pool.generated(promise, now))
