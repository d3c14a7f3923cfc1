"""What a decision about a call's place saw, noted down while it was made.

Rules this module keeps:

* Together with the call and the rules of its class this is all that the decision rested on: replayed,
  it comes out the same (`extproc.core.replay`).
* Where nobody wants notes, none are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from extproc.core.placement import Placement, Shortage


class Standing(NamedTuple):
    """What a class met in a pool.

    Attributes:
        endpoints: how many are known.
        in_flight: exchanges that held capacity.
        max_concurrency: exchanges that may.
        spare: share of the pool, 0..1, that was kept back for tickets.
        free: the ratio that counts, or None where nothing is known.
        observed: the ratio by the last scrape, or None where that is too old.
        tightening: factor >= 1 on the watermarks.
        own: the ratio that would be free if engines had nothing but what we let in.
        unmet: the mark that kept the class's calls out, None where each was looked at.
    """

    endpoints: int
    in_flight: int
    max_concurrency: int
    spare: float
    free: float | None
    observed: float | None
    tightening: float
    own: float
    unmet: float | None


@dataclass(slots=True)
class Notes:
    """What a decision saw; written by the controller.

    Attributes:
        standing: when a place was last looked for, or None where none was.
        found: what became of that.
        held_up: others of its class, or of one above, waited when it came.
    """

    standing: Standing | None = None
    found: Placement | Shortage | None = None
    held_up: bool = False
