"""What a drill was worth: the numbers that its history comes to.

Rules kept here:

- Every share is of the calls *offered* in the measured time; a fallback is a miss.
- In time means: the first token within the class's limit from the offer on, and every further one
  within the limit per token on average over the call.
- A number that has no meaning in a run is NaN, never 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import pstdev

from extproc.sim.drill.history import End, History, Record
from extproc.sim.drill.setting import Setting

RECOVERED = 0.99
"""The share of calls in time that counts as normal, where a controller has as much."""
WINDOW = 5.0
"""Seconds over which it is looked for."""

_NOT_SHED = frozenset({"prompt_too_long", "bad_request", "body_too_large"})


def score(history: History, setting: Setting, relief: float | None = None) -> dict[str, float]:
    """Return all numbers by name; ``relief``: when a peak was over, for the recovery time."""
    names = list(setting.config.classes)
    measured = [record for record in history.records if record.counts]
    scores: dict[str, float] = {}
    goodput = 0.0
    for rank, name in enumerate(names):
        offered = [record for record in measured if record.call.rank == rank]
        good = sum(in_time(record, setting) for record in offered)
        goodput += setting.terms[rank].worth * good
        shed = sum(record.end is End.SHED for record in offered)
        scores[f"in_time_{name}"] = _share(good, len(offered))
        scores[f"shed_{name}"] = _share(shed, len(offered))
        back = [record for record in offered if record.call.again]
        scores[f"back_{name}"] = _share(sum(in_time(r, setting) for r in back), len(back))
        firsts = [r.first_at - r.call.at for r in offered if r.first_at < math.inf]
        scores[f"ttft_p99_{name}"] = percentile(firsts, 0.99)
    admitted = [record for record in measured if record.sent_at < math.inf]
    scores["goodput"] = goodput / setting.measured
    scores["admitted_in_time"] = _share(
        sum(in_time(record, setting) for record in admitted), len(admitted)
    )
    scores["waste"] = waste(history, setting)
    scores["inversions"] = float(inversions(history.records))
    usage = [sample.kv_usage for sample in history.samples]
    scores["kv_mean"] = sum(usage) / len(usage) if usage else math.nan
    scores["kv_sd"] = pstdev(usage) if usage else math.nan
    mark = min(1.0 - each.close for each in setting.classes())
    scores["kv_full"] = _share(sum(each > mark for each in usage), len(usage))
    scores["flips"] = flips([s.closed for s in history.samples], setting.measured)
    scores["recovery"] = math.nan if relief is None else recovery(measured, setting, relief)
    scores["jain"] = jain(r for r in measured if r.call.rank == 1)
    scores["vtc"] = vtc_excess(history.records, setting)
    scores["evicted"] = _share(sum(r.end is End.EVICTED for r in admitted), len(admitted))
    scores["preemptions"] = float(history.preemptions)
    return scores


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def percentile(values: Iterable[float], level: float) -> float:
    """Return the nearest-rank percentile, NaN where there is no value."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(level * len(ordered)) - 1)]


def in_time(record: Record, setting: Setting) -> bool:
    """Whether a call was completed and every promise on it was kept."""
    if record.end is not End.COMPLETED:
        return False
    return _on_pace(record, setting, record.ended_at, record.call.output)


def _on_pace(record: Record, setting: Setting, now: float, generated: int) -> bool:
    if record.first_at - record.call.at > setting.terms[record.call.rank].first_token:
        return False
    # A step's end is a sum of floats: what lies under a microsecond is no delay.
    return now - record.first_at <= (generated - 1) * setting.per_token + 1e-6


def waste(history: History, setting: Setting) -> float:
    """Return the share of the tokens computed that were computed again or for a call that missed."""
    useful = 0
    for record in history.records:
        call = record.call
        if in_time(record, setting):
            # The token that ends a sequence is never computed.
            useful += call.prompt + call.output - 1
        elif record.end is End.UNFINISHED and call.id in history.running:
            held = history.running[call.id]
            limit = setting.terms[call.rank].first_token
            if record.first_at - call.at <= limit or record.first_at == math.inf:
                useful += held
    return 1.0 - useful / history.computed if history.computed else 0.0


def inversions(records: Sequence[Record]) -> int:
    """Count the calls shed although a lower one got the same capacity.

    For the same capacity means: the lower call was sent by the same gateway while the shed one
    waited, or after it was shed and before the gateway had any news, and was at least as large (in
    the estimate of its prompt and in the tokens asked for).
    """
    sent: dict[int, list[tuple[int, Record]]] = defaultdict(list)
    for record in records:
        if record.sent_at < math.inf:
            sent[record.gateway].append((record.decided, record))
    for log in sent.values():
        log.sort(key=lambda entry: entry[0])
    count = 0
    for shed in records:
        if shed.end is not End.SHED or shed.reason in _NOT_SHED:
            continue
        log = sent[shed.gateway]
        for index in range(bisect_right(log, shed.seen, key=lambda entry: entry[0]), len(log)):
            record = log[index][1]
            if record.epoch > shed.epoch:
                break
            if (
                record.call.rank > shed.call.rank
                and record.offer.prompt >= shed.offer.prompt
                and record.offer.max_tokens >= shed.offer.max_tokens
            ):
                count += 1
                break
    return count


def flips(states: Sequence[tuple[bool, ...] | None], seconds: float) -> float:
    """Return how often a class opened or closed per minute, for the class that did so most."""
    known = [state for state in states if state is not None]
    if not known:
        return math.nan
    changes = [0] * len(known[0])
    for before, after in pairwise(known):
        for rank, (one, other) in enumerate(zip(before, after, strict=True)):
            changes[rank] += one != other
    return max(changes) * 60.0 / seconds


def recovery(records: Sequence[Record], setting: Setting, relief: float) -> float:
    """Return how many seconds after ``relief`` all is normal again; NaN where it never is.

    Normal is the share of calls in time in the last half of what is measured after the relief, but
    `RECOVERED` at most. It is reached where so many of the calls of `WINDOW` seconds are in time.
    """
    later = [record for record in records if record.call.at >= relief]
    if not later:
        return 0.0
    good = list(accumulate((in_time(record, setting) for record in later), initial=0))
    times = [record.call.at for record in later]
    half = bisect_left(times, (relief + times[-1]) / 2.0)
    normal = min(RECOVERED, (good[-1] - good[half]) / (len(later) - half))
    for first, at in enumerate(times):
        last = bisect_left(times, at + WINDOW)
        if good[last] - good[first] >= normal * (last - first):
            return at - relief if first else 0.0
    return math.nan


def jain(records: Iterable[Record]) -> float:
    """Return Jain's index over tenants, each one's service relative to its due.

    Service is counted in virtual tokens (prompt + 2 · output) of completed calls. What is due is
    the smaller of its demand and its max-min fair share of all that was served.
    """
    demand: dict[str, float] = defaultdict(float)
    service: dict[str, float] = defaultdict(float)
    for record in records:
        tokens = virtual_tokens(record)
        demand[record.call.tenant] += tokens
        if record.end is End.COMPLETED:
            service[record.call.tenant] += tokens
    due = fair_shares(demand, sum(service.values()))
    shares = [service[tenant] / share for tenant, share in due.items() if share > 0.0]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else math.nan


def virtual_tokens(record: Record) -> float:
    """Return what a call weighs between tenants: an output token twice a prompt token."""
    return record.call.prompt + 2.0 * record.call.output


def fair_shares(demand: Mapping[str, float], total: float) -> dict[str, float]:
    """Return the max-min fair shares of ``total``: nobody gets more than it demands."""
    shares: dict[str, float] = {}
    left, waiting = total, sorted(demand, key=lambda tenant: (demand[tenant], tenant))
    for index, tenant in enumerate(waiting):
        shares[tenant] = min(demand[tenant], left / (len(waiting) - index))
        left -= shares[tenant]
    return shares


def vtc_excess(records: Sequence[Record], setting: Setting) -> float:
    """Return the worst injustice between tenants of the second class over what theory allows.

    While a tenant has calls waiting, another may be served more than it by 2·max(longest prompt,
    2·M) virtual tokens at most, M being the tokens that the caches hold (Sheng et al., OSDI 2024,
    theorem 4.4). 1 is that bound. NaN where nobody of the class ever waited.
    """
    events: list[tuple[int, int, Record]] = []
    longest = 0
    for record in records:
        if record.call.rank == 1 and record.decided >= 0:
            longest = max(longest, record.call.prompt)
            events.append((record.seen, 0, record))
            events.append((record.decided, 1, record))
    events.sort(key=lambda event: event[:2])
    waiting: dict[str, int] = defaultdict(int)
    served: dict[str, float] = defaultdict(float)
    since: dict[str, dict[str, float]] = {}
    worst = math.nan
    for _, decided, record in events:
        tenant = record.call.tenant
        if not decided:
            waiting[tenant] += 1
            if waiting[tenant] == 1:
                since[tenant] = dict(served)
            continue
        waiting[tenant] -= 1
        if record.sent_at < math.inf:
            served[tenant] += virtual_tokens(record)
        for other, start in since.items():
            gap = _gain(served, start, tenant) - _gain(served, start, other)
            worst = gap if math.isnan(worst) else max(worst, gap)
        if waiting[tenant] == 0:
            del since[tenant]
    capacity = setting.engine.capacity * setting.endpoints
    return worst / (2.0 * max(longest, 2.0 * capacity))


def _gain(served: Mapping[str, float], start: Mapping[str, float], tenant: str) -> float:
    return served[tenant] - start.get(tenant, 0.0)
