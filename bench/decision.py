"""How long a decision takes: ``python -m bench.decision`` prints one line per form of the pool.

Calls of three classes ask a controller with 1000 exchanges in flight on 16 endpoints; each decision
is followed by the end of one exchange and, as often as endpoints are scraped, by a reading. The time
is that of `Controller.decide` alone. Run it on an idle machine: it measures the machine as well.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence

from extproc.core.capacity import Pool, PoolLimits, Reading
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Action, Candidate, Controller, Line, RequestLimits
from extproc.core.outcomes import End, Outcome
from extproc.core.queue import Queue, QueueLimits
from extproc.core.tickets import Tickets

CLASSES = (
    ServiceClass("P0", 0, strict=True, close=0.03, open=0.05),
    ServiceClass("P1", 1, close=0.08, open=0.12, prefill_wait=2.0),
    ServiceClass("P2", 2, close=0.15, open=0.20, concurrency=0.80, prefill_wait=2.0),
)
IN_FLIGHT = 1000
ENDPOINTS = 16
DECISIONS = 6000
PER_SCRAPE = 16
"""Decisions for each scrape of an endpoint: 1,300/s at 16 endpoints and 200 ms."""
BLOCK = 16


def run(*, pick: bool, room: float, endpoints: int = ENDPOINTS, seed: int = 1) -> list[float]:
    """Return the seconds that each decision took.

    Args:
        pick: the endpoint is chosen, not left to Envoy.
        room: KV-cache tokens for each exchange in flight; under 1000 calls are refused.
        endpoints: how many there are.
        seed: of the calls.
    """
    rng = random.Random(seed)  # noqa: S311 (no secrets)
    tokens = round(IN_FLIGHT * room / endpoints)
    limits = PoolLimits(10 * IN_FLIGHT, stale_after=1e9, unknown_after=2e9, pick=pick)
    pool = Pool("qwen", limits, CLASSES)
    line = Line(Queue(QueueLimits(2048, 64 << 20), CLASSES), Tickets(b"key", window=60.0), 0.05)
    controller = Controller({"qwen": pool}, (RequestLimits(1 << 20),), {"qwen": line})
    names = [f"10.0.0.{number}:8000" for number in range(endpoints)]
    for name in names:
        pool.join(name)
        pool.observe(name, _reading(0.0, tokens, 0), read_at=0.0, now=0.0)
    live: list[str] = []
    taken: list[float] = []
    now = 0.0
    for number in range(DECISIONS + IN_FLIGHT):
        now += 1e-4
        call = _call(rng, number)
        if number % PER_SCRAPE == 0:
            name = rng.choice(names)
            state = pool.endpoints[name]
            used = state.promises.current(now) / tokens
            pool.sending(name, now)
            pool.observe(name, _reading(used, tokens, len(state.promises)), read_at=now, now=now)
        begin = time.perf_counter()
        verdict = controller.decide(call, "qwen", now)
        if number >= IN_FLIGHT:
            taken.append(time.perf_counter() - begin)
        if verdict.action is Action.ADMIT:
            live.append(call.id)
        full = verdict.action is not Action.ADMIT and number % 2
        if len(live) > IN_FLIGHT or (live and full):
            ended = live.pop(rng.randrange(len(live)))
            controller.release(ended, "qwen")
            controller.settle(ended, "qwen", End(Outcome.COMPLETED, 400, 160, 3.0))
    return taken


def _call(rng: random.Random, number: int) -> Candidate:
    service_class = rng.choices(CLASSES, (20, 30, 50))[0]
    who = Classification("t", "chat", service_class, None, None, (), None, None)
    prompt = rng.randint(50, 1500)
    return Candidate(f"x{number}", who, prompt, 4 * prompt, max_output=rng.choice((256, 2048)))


def _reading(used: float, tokens: int, running: int) -> Reading:
    return Reading(min(1.0, used), tokens // BLOCK, BLOCK, running, 0, 0, generated=0, prompted=0)


def _show(name: str, taken: Sequence[float]) -> None:
    ordered = sorted(taken)
    p50, p99 = (ordered[int(len(ordered) * q)] * 1e6 for q in (0.50, 0.99))
    print(f"{name:40} {len(ordered):6} decisions  p50 {p50:7.1f} µs  p99 {p99:7.1f} µs")  # noqa: T201


def main() -> None:
    """Measure and print."""
    gc.collect()
    gc.freeze()
    for pick in (True, False):
        for name, room in (("roomy", 2000.0), ("full", 900.0)):
            form = "pick" if pick else "envoy"
            _show(f"{ENDPOINTS} endpoints, balance {form}, {name}", run(pick=pick, room=room))


if __name__ == "__main__":
    main()
