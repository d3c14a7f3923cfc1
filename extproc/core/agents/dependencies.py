"""Whether what a call builds on is there: the tasks that it names as its predecessors.

Rules this module keeps:

* A predecessor that failed or was turned away refuses its successors at once: their work would be
  wasted. One that is under way makes them wait. One that is done lets them pass.
* Of a predecessor that nobody has heard of, the configuration decides.
* Tasks that wait for one another in a circle would wait for ever: the call that closes it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from extproc.core.agents.runs import Member, Run, leads_to


class Unknown(StrEnum):
    """What to do about a predecessor that nobody has heard of."""

    PASS = "pass"  # noqa: S105
    WAIT = "wait"
    REFUSE = "refuse"


class Standing(StrEnum):
    """How things stand with all predecessors of a call."""

    MET = "met"
    PENDING = "pending"
    UNMET = "unmet"
    CIRCULAR = "circular"


def standing(run: Run, member: Member, unknown: Unknown) -> Standing:
    """Return how things stand with a call's predecessors."""
    if not member.depends_on:
        return Standing.MET

    def predecessors(task: str) -> Iterable[str]:
        known = run.tasks.get(task)
        return known.depends_on if known is not None and (known.live or known.calls) else ()

    pending = False
    for name in member.depends_on:
        if leads_to(name, member.key, predecessors):
            return Standing.CIRCULAR
        task = run.tasks.get(name)
        if task is None or (not task.live and task.failed is None):
            if unknown is Unknown.REFUSE:
                return Standing.UNMET
            pending = pending or unknown is Unknown.WAIT
        elif task.live:
            pending = True
        elif task.failed:
            return Standing.UNMET
    return Standing.PENDING if pending else Standing.MET
