"""How long an output may get, by what the client asks for and what its class, task and breaker allow."""

from __future__ import annotations

from msgspec.structs import replace

from extproc.core.classes import Classification
from extproc.openai.calls import LIMITS, Call
from extproc.openai.endpoints import Endpoint


def clamped(classification: Classification, limit: int | None) -> Classification:
    """Return the classification with outputs of so many tokens at most; None: no other limit."""
    most = classification.max_output
    if limit is None or (most is not None and most <= limit):
        return classification
    return replace(classification, max_output=limit)


def max_output(call: Call | None, classification: Classification) -> int | None:
    """Return the tokens of each choice at which the engine will end it, after the clamp."""
    if call is None:
        return classification.max_output
    if call.endpoint is Endpoint.EMBEDDINGS:
        return 0
    asked = call.max_output
    if asked is None or asked < 1:
        asked = LIMITS[call.endpoint].default
    bounds = [each for each in (asked, classification.max_output) if each is not None]
    return min(bounds, default=None)
