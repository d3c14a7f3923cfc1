"""The section ``breaker:``. Without it there is no breaker; with ``breaker: {}`` there is one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from extproc.config.base import Section
from extproc.config.values import Count, Seconds


class BreakerConfig(Section):
    """When a sudden, lasting rise of a task's output lengths trips; see `extproc.core.breaker`.

    ``rise``: the factor on a tenant's usual output for this task that counts as risen, and to which
    outputs are clamped then. ``alarm``: completed calls of a task between two false alarms. A rise
    must have lasted for ``sustain``; outputs are clamped for ``clamp_for`` before calls are shed, and
    shed for ``open_for``, doubled each time up to ``longest``, until up to ``probes`` at a time may try.
    What lasts for ``relearn`` is the new normal.
    """

    rise: Annotated[float, Field(ge=1.2, le=100)] = 2.0
    alarm: Annotated[float, Field(ge=100, le=1e12)] = 1e6
    sustain: Seconds = 10.0
    clamp_for: Seconds = 30.0
    open_for: Annotated[Seconds, Field(gt=0)] = 30.0
    longest: Annotated[Seconds, Field(gt=0)] = 600.0
    probes: Count = 3
    relearn: Annotated[Seconds, Field(gt=0)] = 3600.0

    @model_validator(mode="after")
    def _ordered(self) -> BreakerConfig:
        if self.longest < self.open_for:
            raise ValueError("longest must not be under open_for")
        return self
