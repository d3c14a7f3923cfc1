"""What tests can do to an emulated engine, and what they can see of it.

Rules this module keeps:

* Faults are switched as a whole value: reading them never sees half of a change.
* Requests are noted as they came: header names and values as bytes on the wire, bodies before any
  decompression.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from extproc.sim.emulator.oddities import Oddity

SHOWN_BODY = 64 * 1024
"""Bodies under this many bytes are kept, longer ones only as their length and hash."""


class MetricsFault(StrEnum):
    """What is wrong with the metrics page."""

    NONE = "none"
    HANG = "hang"
    """The request is read and never answered."""
    ERROR = "error"
    """Status 500."""
    GARBAGE = "garbage"
    """Status 200 with bytes that are no metrics."""
    FOREIGN = "foreign"
    """A good page without any series of vLLM."""
    UNSIZED = "unsized"
    """A good page that does not tell how large the cache is."""


class Reset(StrEnum):
    """Where the connection of a generating call is cut."""

    NONE = "none"
    BEFORE_FIRST_BYTE = "before_first_byte"
    MID_STREAM = "mid_stream"


class FaultsError(ValueError):
    """A fault that does not exist, or a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong at present.

    Attributes:
        metrics: fault of the metrics page.
        kv_usage: what the page shows instead of the true usage, 0..1.
        latency: seconds that each generating call waits before it is looked at.
        status: HTTP status, 400 to 599, that generating calls get instead of an answer.
        reset: where generating calls are cut.
        text: what is generated first, four characters a token, before the filler.
        stream: what is unusual about streams.
    """

    metrics: MetricsFault = MetricsFault.NONE
    kv_usage: float | None = None
    latency: float = 0.0
    status: int | None = None
    reset: Reset = Reset.NONE
    text: str = ""
    stream: tuple[Oddity, ...] = ()

    def __post_init__(self) -> None:
        if self.kv_usage is not None and not 0 <= self.kv_usage <= 1:
            raise FaultsError("kv_usage must be null or 0..1")
        if not 0 <= self.latency < float("inf"):
            raise FaultsError("latency must be 0 or more seconds")
        if self.status is not None and not 400 <= self.status <= 599:
            raise FaultsError("status must be null or 400..599")

    def changed(self, changes: object) -> Faults:
        """Return these faults with some of them changed.

        Args:
            changes: field names and values, as read from JSON.

        Raises:
            FaultsError: a name or a value is not possible.
        """
        if not isinstance(changes, Mapping):
            raise FaultsError("faults are an object")
        known = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise FaultsError(f"no such fault: {', '.join(unknown)}; there are {sorted(known)}")
        values: dict[str, Any] = dict(changes)
        try:
            if "metrics" in values:
                values["metrics"] = MetricsFault(values["metrics"])
            if "reset" in values:
                values["reset"] = Reset(values["reset"])
            if "stream" in values:
                values["stream"] = tuple(map(Oddity, values["stream"]))
            return replace(self, **values)
        except FaultsError:
            raise
        except (TypeError, ValueError) as error:
            raise FaultsError(str(error)) from error

    def as_json(self) -> dict[str, Any]:
        """Return them as ``changed`` takes them."""
        return asdict(self)


class ReceivedRequests:
    """The last requests, as received."""

    def __init__(self, limit: int) -> None:
        self._requests: deque[dict[str, Any]] = deque(maxlen=limit)

    def note(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Note one request.

        Args:
            method: HTTP method.
            path: path and query as on the request line.
            headers: names and values in their order.
            body: as sent.
        """
        self._requests.append(
            {
                "method": method,
                "path": path,
                "headers": [[name.decode("latin-1"), v.decode("latin-1")] for name, v in headers],
                "body_length": len(body),
                "body_sha256": hashlib.sha256(body).hexdigest(),
                "body_base64": base64.b64encode(body).decode() if len(body) < SHOWN_BODY else None,
            }
        )

    def as_json(self) -> list[dict[str, Any]]:
        """Return them, oldest first."""
        return list(self._requests)
