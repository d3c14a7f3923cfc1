"""How an exchange ended; the closed set that settlement and metrics speak of."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """The end of an admitted exchange."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    ENGINE_ERROR = "engine_error"
    ENGINE_REJECTED = "engine_rejected"
    TIMEOUT = "timeout"
    EVICTED = "evicted"
    """Cut, or turned away after all, to make room for a higher class."""


class End(msgspec.Struct, frozen=True, gc=False):
    """How an exchange ended, with what the engine reported; None where it reported nothing.

    Attributes:
        outcome: how it ended.
        prompt_tokens: of the prompt.
        completion_tokens: of all choices together.
        seconds: from the first byte of the request to the last of the response.
    """

    outcome: Outcome
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
