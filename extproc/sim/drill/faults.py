"""What goes wrong in a drill, or is otherwise than usual: data, which the world acts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Faults:
    """What is otherwise in one run; the defaults are nothing. Times count from the start, in seconds.

    Attributes:
        scrape_interval: between two scrapes of an endpoint; None: as set.
        outage: no scrape is answered from the first time to the second.
        token_error: factor on the estimate of every prompt's length.
        lost_ends: share of the calls of whose end the gateway never hears.
        death: endpoint 0 is gone from the first time to the second, with all its calls.
        counter_reset: when the counters of every metrics page start again at 0.
        block_error: factor on the number of blocks that the metrics pages report.
        gateways: how many Tidegates stand before the pool and know nothing of each other.
        noisy: calls of the second class's first tenant, for each of another tenant.
        resubmit: share of shed calls whose client comes back; 0: as set.
        patience: seconds that the lowest class may wait; None: as configured.
    """

    scrape_interval: float | None = None
    outage: tuple[float, float] | None = None
    token_error: float = 1.0
    lost_ends: float = 0.0
    death: tuple[float, float] | None = None
    counter_reset: float | None = None
    block_error: float = 1.0
    gateways: int = 1
    noisy: float = 1.0
    resubmit: float = 0.0
    patience: float | None = None


NO_FAULT = Faults()
OTHERWISE = frozenset({"none", "noisy", "come-back", "patient"})
"""Names that are no faults: callers, or the configuration, are otherwise."""

FAULTS: Mapping[str, Faults] = MappingProxyType(
    {
        "none": NO_FAULT,
        "scrape-50ms": Faults(scrape_interval=0.05),
        "scrape-1s": Faults(scrape_interval=1.0),
        "scrape-5s": Faults(scrape_interval=5.0),
        "outage": Faults(outage=(35.0, 65.0)),
        "tokens-30%": Faults(token_error=0.7),
        "tokens+30%": Faults(token_error=1.3),
        "lost-ends": Faults(lost_ends=0.01),
        "death": Faults(death=(40.0, 60.0)),
        "counter-reset": Faults(counter_reset=50.0),
        "blocks-half": Faults(block_error=0.5),
        "blocks-double": Faults(block_error=2.0),
        "gateways-3": Faults(gateways=3),
        "noisy": Faults(noisy=10.0),
        "come-back": Faults(resubmit=0.7),
        "patient": Faults(patience=10.0),
    }
)
