"""Load on an OpenAI-shaped server, and what came of it.

Rules this module keeps:

* Open loop: when a request is sent depends on the schedule alone, never on earlier answers.
* Latency counts from the time a request was due. A generator or a server that falls behind shows
  in the numbers instead of thinning the load out (no coordinated omission). How late requests left
  is reported beside, so that a generator too slow for its task does not pass unseen.
* Percentiles are exact: every latency is kept, eight bytes each.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import Random

from extproc.sim.loadgen.http_client import Answer, Client

_FALLBACK = re.compile(rb'"id"\s*:\s*"(?:chatcmpl-|cmpl-|resp_|msg_)promo[-_]shedded[-_]')


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of caller.

    Attributes:
        name: what its results are kept under.
        body: makes the body of its next request.
        headers: say who is calling.
        weight: its share of the mix, in proportion to the others' weights.
        path: where it sends.
    """

    name: str
    body: Callable[[Random], bytes]
    headers: tuple[tuple[str, str], ...] = ()
    weight: float = 1.0
    path: str = "/v1/chat/completions"


class Kind(Enum):
    """Who answered."""

    ENGINE = "engine"
    FALLBACK = "fallback"
    ERROR = "error"


def kind_of(answer: Answer) -> Kind:
    """Return who answered; a fallback is known by the prefix of its id."""
    if answer.error is not None or answer.status != 200:
        return Kind.ERROR
    return Kind.FALLBACK if _FALLBACK.search(answer.body) else Kind.ENGINE


class Latencies:
    """Seconds, every one of them kept."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._values = array("d", values)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, seconds: float) -> None:
        """Keep one more."""
        self._values.append(seconds)

    def recent(self, count: int) -> Latencies:
        """Return the last ones only."""
        return Latencies(self._values[-count:])

    def percentiles(self, *percents: float) -> tuple[float, ...]:
        """Return exact percentiles (0 to 100, nearest rank); NaN where there are no values."""
        ordered = sorted(self._values)
        return tuple(_nearest_rank(ordered, percent) for percent in percents)


def _nearest_rank(ordered: Sequence[float], percent: float) -> float:
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


@dataclass(slots=True)
class Tally:
    """What came of one kind of traffic.

    Attributes:
        sent: requests sent, answered or not.
        answers: how many answers of each kind.
        errors: what the errors were, and how many of each.
        first_byte: seconds from due to the first byte of the body, for each kind of answer.
        total: seconds from due to the end of the answer, for each kind of answer.
        lateness: seconds from due to sent.
    """

    sent: int = 0
    answers: Counter[Kind] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    first_byte: dict[Kind, Latencies] = field(
        default_factory=lambda: {kind: Latencies() for kind in Kind}
    )
    total: dict[Kind, Latencies] = field(
        default_factory=lambda: {kind: Latencies() for kind in Kind}
    )
    lateness: Latencies = field(default_factory=Latencies)

    def sending(self, lateness: float) -> None:
        """Count a request that is being sent."""
        self.sent += 1
        self.lateness.add(lateness)

    def answered(self, due: float, answer: Answer) -> None:
        """Count an answer to a request that was due at this time."""
        kind = kind_of(answer)
        self.answers[kind] += 1
        if kind is Kind.ERROR:
            self.errors[answer.error or f"HTTP {answer.status}"] += 1
        self.first_byte[kind].add(answer.first_byte - due)
        self.total[kind].add(answer.end - due)


def poisson(rate: float, seconds: float, rng: Random) -> Iterator[float]:
    """Yield the times of independent callers, in seconds from the start: exponential gaps."""
    gaps = (rng.expovariate(rate) for _ in itertools.count())
    return itertools.takewhile(lambda time: time < seconds, itertools.accumulate(gaps))


class Load:
    """Sends a mix of traffic and keeps count, under each traffic's name, in ``tallies``."""

    def __init__(self, client: Client, mix: Sequence[Traffic], rng: Random) -> None:
        self.tallies: Mapping[str, Tally] = {traffic.name: Tally() for traffic in mix}
        self._client = client
        self._rng = rng
        self._mix = [
            (traffic, self.tallies[traffic.name], client.head(traffic.path, traffic.headers))
            for traffic in mix
        ]
        self._weights = list(itertools.accumulate(traffic.weight for traffic in mix))
        self._in_flight = 0
        self._idle = asyncio.Event()

    async def run(self, arrivals: Iterable[float], *, patience: float) -> None:
        """Send a request at each of these times (seconds from now, ascending), open loop.

        Args:
            arrivals: when; see `poisson`.
            patience: seconds after the last request until what is unanswered counts as an error.
        """
        clock = self._client.clock
        start = clock()
        for arrival in arrivals:
            due = start + arrival
            wait = due - clock()
            if wait > 0:
                await asyncio.sleep(wait)
            self._send(due)
        try:
            async with asyncio.timeout(patience):
                while self._in_flight:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            self._client.give_up("no answer")

    async def saturate(self, concurrency: int, seconds: float) -> float:
        """Keep this many requests in flight, closed loop, and return the answers per second."""
        clock = self._client.clock
        start = clock()
        end = start + seconds
        answered = 0

        def again(_: Answer) -> None:
            nonlocal answered
            answered += 1
            if clock() < end:
                # Not at once: a connection that fails on sending would call us without end.
                loop.call_soon(self._send, clock(), again)

        loop = asyncio.get_running_loop()
        for _ in range(concurrency):
            self._send(start, again)
        await asyncio.sleep(seconds)
        rate = answered / (clock() - start)
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()
        return rate

    def _send(self, due: float, then: Callable[[Answer], None] | None = None) -> None:
        (traffic, tally, head) = self._rng.choices(self._mix, cum_weights=self._weights)[0]
        body = traffic.body(self._rng)
        self._in_flight += 1
        tally.sending(max(self._client.clock() - due, 0.0))
        self._client.send(head, body, partial(self._answered, tally, due, then))

    def _answered(
        self, tally: Tally, due: float, then: Callable[[Answer], None] | None, answer: Answer
    ) -> None:
        self._in_flight -= 1
        tally.answered(due, answer)
        if then is not None:
            then(answer)
        if not self._in_flight:
            self._idle.set()
