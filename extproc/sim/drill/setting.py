"""Where a drill plays: engines, classes and what counts as served in time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from extproc.config import Config, service_classes
from extproc.core.classes import ServiceClass
from extproc.sim.drill.workload import Audience
from extproc.sim.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class Terms:
    """What a class is promised, and what it is worth.

    Attributes:
        first_token: seconds within which the first token must come.
        worth: weight of one call in the goodput.
        share: of all calls.
        tenants: how many call.
    """

    first_token: float
    worth: float
    share: float
    tenants: int = 4


DEFAULT_TERMS = (Terms(2.0, 8.0, 0.2), Terms(5.0, 3.0, 0.3), Terms(15.0, 1.0, 0.5))
LONGEST = 8192
"""Tokens of one sequence: so long a prompt and output that engines are set up for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything but the workload, the faults and the controller.

    Attributes:
        config: classes with their watermarks, and the pool's limits, as the product reads them.
        engine: each endpoint.
        endpoints: how many.
        terms: by rank of the class.
        per_token: seconds per token after the first, on average over a call.
        max_concurrency: calls in flight that the pool is configured for.
        pick: the gateway chooses endpoints, not Envoy.
        scrape_interval: seconds.
        stale_after, unknown_after: ages of a reading, in seconds.
        scrape_delay: seconds from sending a scrape to its answer, at least and at most.
        estimate_error: relative error of the gateway's guess of a prompt's tokens, at most.
        abort_delay: seconds from cutting a call to its blocks being free.
        resubmit: share of shed calls whose client comes back, once, after the fallback's time. Each
            counts as another call; the first one stays a miss.
        warm_up, measured, tail: seconds before, in and after the calls that count.
    """

    config: Config = field(default_factory=Config)
    engine: EngineConfig = field(default_factory=lambda: EngineConfig(max_model_len=LONGEST))
    endpoints: int = 2
    terms: tuple[Terms, ...] = DEFAULT_TERMS
    per_token: float = 0.1
    max_concurrency: int = 256
    pick: bool = True
    scrape_interval: float = 0.2
    stale_after: float = 1.0
    unknown_after: float = 30.0
    scrape_delay: tuple[float, float] = (0.010, 0.020)
    estimate_error: float = 0.1
    abort_delay: float = 0.06
    resubmit: float = 0.0
    warm_up: float = 20.0
    measured: float = 60.0
    tail: float = 15.0

    @property
    def seconds(self) -> float:
        """How long calls arrive."""
        return self.warm_up + self.measured + self.tail

    def classes(self) -> tuple[ServiceClass, ...]:
        """The classes, highest first."""
        return service_classes(self.config)

    def audiences(self, noisy: float = 1.0) -> tuple[Audience, ...]:
        """Who calls; the first tenant of the second class calls ``noisy`` times as often as another."""
        return tuple(
            self._audience(service_class, terms, noisy if service_class.rank == 1 else 1.0)
            for service_class, terms in zip(self.classes(), self.terms, strict=True)
        )

    def _audience(self, service_class: ServiceClass, terms: Terms, noisy: float) -> Audience:
        room = self.engine.longest
        max_tokens = min(service_class.max_output or room // 4, room // 2)
        return Audience(
            rank=service_class.rank,
            share=terms.share,
            # The gateway holds its guess against the limit, and may guess too high.
            max_prompt=min(
                int((service_class.max_prompt or room) / (1.0 + self.estimate_error)),
                room - max_tokens,
            ),
            max_tokens=max_tokens,
            tenants=tuple(
                (f"{service_class.name}-{number}", noisy if number == 0 else 1.0)
                for number in range(terms.tenants)
            ),
        )

    def patient(self, seconds: float) -> Setting:
        """Return the same where the lowest class may wait so long."""
        classes = dict(self.config.classes)
        name, lowest = classes.popitem()
        classes[name] = lowest.model_copy(update={"max_wait": seconds})
        return replace(self, config=self.config.model_copy(update={"classes": classes}))

    def lasting(self, *, warm_up: float, measured: float, tail: float) -> Setting:
        """Return the same with other durations."""
        return replace(self, warm_up=warm_up, measured=measured, tail=tail)
