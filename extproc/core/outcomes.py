"""How an exchange ended; the closed set that settlement and metrics speak of."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The end of an admitted exchange, or that it was never admitted."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    ENGINE_ERROR = "engine_error"
    ENGINE_REJECTED = "engine_rejected"
    TIMEOUT = "timeout"
