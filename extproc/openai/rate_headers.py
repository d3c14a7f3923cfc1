"""The headers in which OpenAI's clients read how much they may still send.

Rules:
- Names and forms are those of OpenAI's API: whole numbers, and durations as Go writes them
  (``6m0s``, ``1.5s``, ``20ms``, ``0s``).
- ``retry-after`` is in whole seconds, rounded up, because a call sent then must pass.
  ``retry-after-ms``, which OpenAI's SDKs read first, says it more exactly.
- OpenAI's SDKs take no notice of more than 60 seconds and come back at once: they are told not to.
"""

from __future__ import annotations

import math

from extproc.openai.replies import LONGEST_RETRY, SHORTEST_RETRY

Headers = tuple[tuple[str, str], ...]


def rate_headers(kind: str, *, limit: int, remaining: int, reset: float) -> Headers:
    """Return the headers of one bucket.

    Args:
        kind: ``requests`` or ``tokens``.
        limit: what the bucket holds.
        remaining: what is in it.
        reset: seconds until it is full.
    """
    return (
        (f"x-ratelimit-limit-{kind}", str(limit)),
        (f"x-ratelimit-remaining-{kind}", str(remaining)),
        (f"x-ratelimit-reset-{kind}", duration(reset)),
    )


def retry_headers(wait: float) -> Headers:
    """Return the headers that say when a call will pass, in so many seconds."""
    seconds = max(SHORTEST_RETRY, math.ceil(wait))
    headers = (("retry-after", str(seconds)),)
    if seconds > LONGEST_RETRY:
        return (*headers, ("x-should-retry", "false"))
    return (*headers, ("retry-after-ms", str(math.ceil(wait * 1000))))


def duration(seconds: float) -> str:
    """Return a duration as Go writes it, to the millisecond above."""
    milliseconds = math.ceil(seconds * 1000 - 1e-3)
    if milliseconds < 1:
        return "0s"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:g}s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
