"""What becomes of a call that a fault of our own code meets.

Rules this module keeps:

* A request that could not be judged is refused in its endpoint's own shape, or passes untouched, as the
  configuration declares. Envoy's ``failure_mode`` is for a processor that is gone: as an answer to faults
  it would let a caller who finds one past every gate.
* A response goes on as the engine gives it: it has been paid for, and half of it would be a torn stream.
* Each fault is counted and logged once, by its place, its kind and where in the code it happened; never
  by its message, which may quote what a caller sent.
"""

from __future__ import annotations

import logging
import traceback

from extproc.core.faults import Place
from extproc.core.reasons import REASONS, Reason
from extproc.edge.exchange import Judgement, Resolution
from extproc.edge.messages import Answer, Forward
from extproc.openai import replies
from extproc.openai.endpoints import Endpoint, endpoint_of

log = logging.getLogger(__name__)

_LABELS = (("x-tidegate-verdict", "reject"), ("x-tidegate-reason", Reason.INTERNAL_ERROR.value))


class FaultDesk:
    """Counts faults and says what is declared for them.

    Args:
        pass_on: requests pass untouched instead of being refused.

    Attributes:
        counts: how many there were, by place.
    """

    def __init__(self, *, pass_on: bool = False) -> None:
        self._pass_on = pass_on
        self.counts = dict.fromkeys(Place, 0)

    def met(self, place: Place, error: Exception, path: str = "") -> Forward | Answer:
        """Note a fault; return what is declared for a request to ``path`` that has no verdict."""
        self.counts[place] += 1
        code = "".join(traceback.format_tb(error.__traceback__))
        told = {"place": place.value, "error": type(error).__name__, "traceback": code}
        log.error("a fault of our own", extra=told)
        return Forward() if self._pass_on else _refusal(path)


def failing(error: Exception) -> Resolution:
    """Return what raises a fault that a call met at its turn where its reply is written, and answered."""

    def fail() -> Judgement:
        raise error

    return fail


def _refusal(path: str) -> Answer:
    entry = REASONS[Reason.INTERNAL_ERROR]
    style = entry.reply
    assert style is not None  # noqa: S101 (it refuses, and says so)
    reply = replies.error(
        endpoint_of(path) or Endpoint.CHAT,
        status=style.status,
        message=entry.en,
        type=style.code,
        code=Reason.INTERNAL_ERROR.value,
        retry=not style.lasting,
    )
    return Answer(reply.status, (*reply.headers, *_LABELS), reply.body)
