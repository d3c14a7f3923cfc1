"""Tickets at the gate: presented by calls that come again, issued to calls that are sent away.

Rules this module keeps:

* A ticket stands for the time at which its call first came, on the wall clock; a clock that was set
  back puts nobody behind those who come later.
* A pool without a line has no places to keep, and no tickets.
* Where other Tidegates have the same key, a ticket is claimed among all of them. It counts at once; who
  turns out to have used one that another has claimed loses its place (`Claims`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from extproc.core.classes import Classification
from extproc.core.controller import Controller
from extproc.core.tickets import Subject, fingerprint
from extproc.edge.responder import Case
from extproc.openai.requests import Call


class Claims(Protocol):
    """Sees to it that a ticket counts once among several Tidegates."""

    def claim(self, number: bytes, expires: float, lost: Callable[[], None]) -> None:
        """Claim a ticket until Unix time ``expires``; ``lost`` is called if another has, soon."""
        ...


class TicketDesk:
    """Takes and issues the tickets of all pools; ``lost`` hears of the exchanges whose ticket was none."""

    def __init__(
        self,
        controller: Controller,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        claims: Claims | None = None,
        lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._lines = controller.lines
        self._clock = clock
        self._wall_clock = wall_clock
        self._claims = claims
        self._lost = lost

    def first_came(
        self,
        ident: str,
        call: Call,
        classification: Classification,
        pool: str,
        token: str,
        now: float,
    ) -> float | None:
        """Return when a call with a ticket first came, on the clock of ``now``."""
        line = self._lines.get(pool)
        if line is None or not (token or len(line.tickets)):
            return None
        wall = self._wall_clock()
        claims, used = self._claims, None
        if claims is not None:

            def used(number: bytes, expires: float) -> None:
                claims.claim(number, expires, partial(self._lost, ident))

        arrived = line.tickets.redeem(subject_of(call, classification), token, wall, used)
        return None if arrived is None else now - max(0.0, wall - arrived)

    def issue(self, case: Case, subject: Subject | None = None) -> str | None:
        """Return a ticket for a call; ``subject`` where its body is no longer there."""
        line, candidate = self._lines.get(case.pool), case.candidate
        if subject is None and case.call is not None:
            subject = subject_of(case.call, candidate.classification)
        if line is None or subject is None:
            return None
        since = case.arrived if candidate.since is None else candidate.since
        wall = self._wall_clock()
        return line.tickets.issue(
            subject, ident=candidate.id, arrived=wall - (self._clock() - since), now=wall
        )


def subject_of(call: Call, classification: Classification) -> Subject:
    """Return what tells the call that a ticket is for from all others."""
    return Subject(
        tenant=classification.tenant,
        service_class=classification.service_class.name,
        rank=classification.service_class.rank,
        session=call.session or call.user,
        fingerprint=fingerprint(call.body),
    )
