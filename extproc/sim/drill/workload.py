"""The calls of a drill: who asks for what, and when.

Rules kept here:

- Equal seeds give equal calls. When, who and how long are drawn from streams of their own, so that
  another load changes the times only.
- The generator offers nothing that a gateway would refuse whatever its load: prompts are cut to the
  class's limit, outputs to the tokens that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from extproc.sim.drill.lengths import Mix

AGAIN = "/2"
"""What the id of a call that comes back ends with."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call, with what only the future knows: its output.

    Attributes:
        id: unique in a drill.
        at: when it is offered, in seconds.
        rank: its class, 0 is the highest.
        tenant: who calls.
        task: what for.
        prompt: tokens of the prompt.
        output: tokens that the engine will generate if it is let.
        max_tokens: tokens that it may generate.
        again: it was shed before, and comes back.
    """

    id: str
    at: float
    rank: int
    tenant: str
    task: str
    prompt: int
    output: int
    max_tokens: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Audience:
    """Callers of one class.

    Attributes:
        rank: the class.
        share: of all calls.
        max_prompt, max_tokens: what a call may have.
        tenants: names, with their share of the class's calls.
        task: what they call for.
    """

    rank: int
    share: float
    max_prompt: int
    max_tokens: int
    tenants: tuple[tuple[str, float], ...]
    task: str = "chat"


@dataclass(frozen=True, slots=True)
class Phase:
    """A time of constant rate.

    Attributes:
        seconds: how long.
        factor: of the rate.
    """

    seconds: float
    factor: float


def arrivals(rate: float, phases: Iterable[Phase], rng: Random) -> Iterator[float]:
    """Yield the times of a Poisson process whose rate is ``rate`` times each phase's factor."""
    start = 0.0
    # A unit-rate process, stretched: equal draws in every phase, whatever the rate.
    due = rng.expovariate(1.0)
    for phase in phases:
        speed = rate * phase.factor
        while speed > 0.0 and due <= speed * phase.seconds:
            yield start + due / speed
            due += rng.expovariate(1.0)
        due -= speed * phase.seconds
        start += phase.seconds


def bursts(seconds: float, *, on: float = 2.0, off: float = 6.0, peak: float = 2.5) -> list[Phase]:
    """Return phases that alternate between ``peak`` and what keeps the mean factor at 1."""
    quiet = (on + off - on * peak) / off
    if quiet < 0.0:
        raise ValueError(f"a burst of {peak} for {on} s leaves nothing for the {off} s after it")
    cycle = [Phase(off, quiet), Phase(on, peak)]
    return cycle * max(1, round(seconds / (on + off)))


def generate(
    times: Iterable[float], mix: Mix, audiences: Sequence[Audience], seed: int
) -> Iterator[Call]:
    """Yield a call for each time."""
    who, size = Random(f"{seed}/who"), Random(f"{seed}/size")  # noqa: S311 (no secrets)
    shares = list(accumulate(audience.share for audience in audiences))
    tenants = [list(accumulate(share for _, share in each.tenants)) for each in audiences]
    for number, at in enumerate(times):
        chosen = who.choices(range(len(audiences)), cum_weights=shares)[0]
        audience = audiences[chosen]
        tenant = who.choices(audience.tenants, cum_weights=tenants[chosen])[0][0]
        prompt, output = mix.draw(size)
        yield Call(
            id=str(number),
            at=at,
            rank=audience.rank,
            tenant=tenant,
            task=audience.task,
            prompt=min(prompt, audience.max_prompt),
            output=min(output, audience.max_tokens),
            max_tokens=audience.max_tokens,
        )
