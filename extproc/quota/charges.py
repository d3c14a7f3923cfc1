"""What a call costs: at most, when it goes; and in the end, by how it ended.

Rules this module keeps:

* Before: the estimated prompt and the longest output that the engine will let it have, of all
  choices. Where nothing bounds the output, the prediction that capacity is booked by.
* After, by the outcome:

  =================================================  =============================================
  completed                                          usage as reported
  client_gone                                        the prompt, and what was generated until then
  engine_error, engine_rejected, timeout, evicted    nothing
  =================================================  =============================================

* What was not reported is estimated, and said to be: of the prompt as before, of the output by the
  engine's pace and the call's duration, and never more than before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from extproc.core.capacity import Pool
from extproc.core.controller import Candidate
from extproc.core.outcomes import End, Outcome

_CHARGED = frozenset((Outcome.COMPLETED, Outcome.CLIENT_GONE))


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a call costs at most, in tokens."""

    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class Charge:
    """What a call has cost, in tokens; ``estimated``: some of it was not reported."""

    tokens: int
    estimated: bool = False


def estimate(call: Candidate, pool: Pool) -> Estimate:
    """Return what a call costs at most."""
    if call.max_output is None:
        return Estimate(call.prompt_tokens, math.ceil(pool.output(call.demand)))
    return Estimate(call.prompt_tokens, call.choices * call.max_output)


def charge(before: Estimate, end: End, generated: float) -> Charge | None:
    """Return what a call has cost, or None where its outcome charges nothing.

    Args:
        before: what it was expected to cost at most.
        end: how it ended.
        generated: tokens that it has probably generated, all choices together.
    """
    if end.outcome not in _CHARGED:
        return None
    prompt, output = end.prompt_tokens, end.completion_tokens
    # Nothing to be reported is no gap in the report.
    estimated = prompt is None or (output is None and before.output > 0)
    if prompt is None:
        prompt = before.prompt
    if output is None:
        output = min(before.output, math.ceil(generated))
    return Charge(prompt + output, estimated)
