"""Where a call fits, or why it fits nowhere.

Rules this module keeps:

* Where we choose (`pick`), each endpoint is judged on its own. The call goes where most is free
  after it came; free ratios count in steps of `EQUAL`, and of several endpoints the one with
  the fewest unread prompt tokens is taken.
* An endpoint whose reading is old or whose last scrape failed is used only where no other one will
  do: a dead one would look empty.
* Where Envoy chooses (`spread`), the endpoints are judged together, as one. A call is booked where
  Envoy's least-request policy would probably send it.
* A call that would not fit into an empty engine goes to an empty one, if its class is open at all:
  a friendly "try again later" would be said for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from extproc.core.endpoint import Account, Endpoint
from extproc.core.promises import Demand
from extproc.core.readings import Freshness
from extproc.core.reasons import Reason

STALE_TIGHTENING = 1.0
"""By how much watermarks have risen, relative to their value, when a reading becomes unknown."""
MOST_TRIED = 2
"""Endpoints with room, the emptiest first, among which the best is looked for."""
EQUAL = 0.01
"""Steps in which free ratios are compared."""
NO_MARK = -math.inf
"""The mark of a call that goes wherever it fits best: nothing is asked of the endpoint."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where a call goes.

    Attributes:
        endpoint: where it is booked; None where there is none.
        chosen: whether Envoy should be told.
        free: what is free after it, or None where nothing is known.
        left: tokens that each of its sequences is predicted to generate.
        room: what there was before it, where it was looked at.
    """

    endpoint: str | None
    chosen: bool
    free: float | None
    left: float
    room: Room | None = None


class Shortage(msgspec.Struct, frozen=True, gc=False):
    """Why a call does not fit: the mark that was not met, and the number held against it.

    Attributes:
        reason, threshold, value: which mark, and the number.
        free: what would be free after it, where KV cache was asked for; of a closed class, what is.
        room: what there was, where it was looked at.
    """

    reason: Reason
    threshold: float | None = None
    value: float | None = None
    free: float | None = None
    room: Room | None = None


class Room(msgspec.Struct, frozen=True, gc=False):
    """What is free at one endpoint, or at several together.

    Attributes:
        account: the sums behind it, or None where the capacity is unknown.
        free: the ratio that counts; under 0 where more is promised than fits.
        observed: the ratio by the last scrape, or None where that is too old.
        tightening: factor >= 1 on the watermarks.
    """

    account: Account | None
    free: float
    observed: float | None
    tightening: float

    @property
    def ratio(self) -> float:
        """What watermarks that are not tightened are held against."""
        return self.free / self.tightening

    def after(self, demand: Demand, left: float, state: Endpoint, now: float) -> float:
        """Return what is free after a call with so many tokens to generate came to ``state``."""
        if self.account is None:
            return self.free
        promises = state.promises
        promises.renew(now)
        both = promises.peak_with(demand, state.size(demand), left, now)
        return self.account.free_after(state.in_blocks(both) - state.in_blocks(promises.peak))

    def shortage(self, mark: float, free: float) -> Shortage:
        """Say whether it is the observed or the predicted usage that leaves too little."""
        mark *= self.tightening
        if self.observed is not None and self.observed < mark:
            return Shortage(Reason.KV_WATERMARK, mark, self.observed, free, self)
        return Shortage(Reason.KV_DEMAND, mark, free, free, self)


class Usable(msgspec.Struct, frozen=True, gc=False):
    """An endpoint of which something is known.

    ``tier`` says how gladly it is used: 0 fresh, 1 old or failing, 2 unknown or down.
    """

    tier: int
    state: Endpoint
    room: Room


def usable(state: Endpoint, now: float) -> Usable | None:
    """Return what is free at an endpoint, or None where nothing is known of it."""
    freshness = state.freshness(now)
    unknown = freshness is Freshness.UNKNOWN
    observed = None
    if state.reading is not None and not unknown:
        observed = round(1.0 - state.reading.kv_usage, 6)
    account = state.account(now)
    tightening = 1.0
    if freshness is not Freshness.FRESH:
        tightening += STALE_TIGHTENING * state.staleness(now)
    if account is not None:
        room = Room(account, account.free_after(0.0), observed, tightening)
    elif observed is not None:
        room = Room(None, observed, observed, tightening)
    else:
        return None
    if unknown or state.down:
        return Usable(2, state, room)
    return Usable(int(freshness is Freshness.STALE or state.problem is not None), state, room)


def together(rooms: Sequence[Room]) -> Room:
    """Return several rooms as one; by their shares where the capacity of one is unknown."""
    if len(rooms) == 1:
        return rooms[0]
    accounts = [room.account for room in rooms if room.account is not None]
    if len(accounts) == len(rooms):
        account = Account.of_all(accounts)
        free, weights = account.free, [each.capacity / account.capacity for each in accounts]
    else:
        account, weights = None, [1.0 / len(rooms)] * len(rooms)
        free = sum(room.free for room in rooms) / len(rooms)
    tightening = sum([w * room.tightening for w, room in zip(weights, rooms, strict=True)])
    seen = [
        (w, room.observed)
        for w, room in zip(weights, rooms, strict=True)
        if room.observed is not None
    ]
    observed = None
    if seen:
        observed = round(sum([w * o for w, o in seen]) / sum([w for w, _ in seen]), 6)
    return Room(account, free, observed, tightening)


def least_busy(states: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint with the fewest exchanges, the first of several."""
    return min(states, key=lambda state: len(state.promises))


def pick(
    demand: Demand, left: float, mark: float, among: Sequence[Usable], now: float
) -> Placement | Shortage:
    """Choose an endpoint.

    Args:
        demand: what the call wants.
        left: tokens that each of its sequences is predicted to generate.
        mark: what must be free afterwards, before tightening; or `NO_MARK`.
        among: at least one.
        now: the clock's time.
    """
    best: tuple[int, float, float, str] | None = None
    best_free, best_room = -math.inf, among[0].room
    shortage: Shortage | None = None
    tried = 0
    order = sorted(among, key=_emptiest_first) if len(among) > 1 else among
    for each in order:
        state, room = each.state, each.room
        worse = best is not None and (each.tier > best[0] or room.free < best_free - EQUAL)
        if worse or tried == MOST_TRIED:
            break
        crowded = None if mark == NO_MARK else _crowded(demand, (state,), now)
        if crowded is not None:
            shortage = shortage or crowded
            continue
        free = room.after(demand, left, state, now)
        if free < mark * room.tightening and not _hopeless(demand, left, mark, room, state):
            shortage = shortage or room.shortage(mark, free)
            continue
        tried += 1
        rank = (each.tier, -(free // EQUAL), state.unprefilled(now), state.name)
        if best is None or rank < best:
            best, best_free, best_room = rank, free, room
    if best is not None:
        return Placement(best[3], True, best_free, left, best_room)
    assert shortage is not None  # noqa: S101 (each endpoint has given one)
    return shortage


def _emptiest_first(each: Usable) -> tuple[int, float]:
    return each.tier, -each.room.free


def spread(
    demand: Demand, left: float, mark: float, room: Room, states: Sequence[Endpoint], now: float
) -> Placement | Shortage:
    """Judge endpoints together; the arguments are those of `pick`, ``room`` is all of theirs."""
    crowded = None if mark == NO_MARK else _crowded(demand, states, now)
    if crowded is not None:
        return crowded
    state = least_busy(states)
    free = room.after(demand, left, state, now)
    if free < mark * room.tightening and not _hopeless(demand, left, mark, room, state):
        return room.shortage(mark, free)
    return Placement(state.name, False, free, left, room)


def _hopeless(demand: Demand, left: float, mark: float, room: Room, state: Endpoint) -> bool:
    """Say whether waiting is in vain: too long for an empty engine, and this one is empty.

    The engine then has the word; it refuses what is longer than its context, and says so.
    """
    mark *= room.tightening
    wanted = demand.choices * (demand.prompt + left)
    capacity = state.capacity or math.inf
    return not state.promises and room.free >= mark and wanted > (1.0 - mark) * capacity


def _crowded(demand: Demand, states: Sequence[Endpoint], now: float) -> Shortage | None:
    """Say whether too many prompts are before a call, in the mean of these endpoints.

    However long it is, a prompt may come where none is before it.
    """
    service_class = demand.service_class
    if service_class.strict:
        return None
    waiting = sum([state.unprefilled(now) for state in states]) / len(states)
    if waiting == 0.0:
        return None
    cap: float | None = service_class.prefill_cap
    if cap is None:
        rate = sum([state.prefill_rate for state in states]) / len(states)
        cap = service_class.prefill_wait * rate
    if waiting + demand.prompt <= cap:
        return None
    return Shortage(Reason.PREFILL_BACKLOG, cap, waiting + demand.prompt)
