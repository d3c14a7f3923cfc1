"""Between protobuf's values and ours."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from extproc.control.auth import Caller, Callers
from extproc.control.pb import modes_pb2
from extproc.control.quota_desk import LedgerSilentError
from extproc.control.settings import ModeSetting
from extproc.core.modes import Mode, ModeGate
from extproc.quota.errors import QuotaError

Context = aio.ServicerContext[Any, Any]

LONGEST_REASON = 1000
"""Characters of a reason."""


def timestamp(at: float) -> Timestamp:
    """Return a Unix time in seconds as protobuf has it, to the microsecond."""
    stamp = Timestamp()
    stamp.FromMicroseconds(round(at * 1e6))
    return stamp


def unix_time(stamp: Timestamp) -> float:
    """Return a protobuf time in seconds, also one that no calendar has."""
    return stamp.seconds + stamp.nanos / 1e9


def mode_state(setting: ModeSetting, gate: ModeGate) -> modes_pb2.ModeState:
    """Return the mode that is in force."""
    return modes_pb2.ModeState(
        mode=modes_pb2.Mode.Value(f"MODE_{setting.mode.name}"),
        by=setting.by,
        at=timestamp(setting.at) if setting.at else None,
        reason=setting.reason,
        closed_classes=gate.closed(),
    )


def mode_of(value: modes_pb2.Mode.ValueType) -> Mode | None:
    """Return which mode is meant, or None."""
    name = modes_pb2.Mode.Name(value) if value in modes_pb2.Mode.values() else ""
    return Mode.__members__.get(name.removeprefix("MODE_"))


async def reason_of(text: str, context: Context) -> str:
    """Return why a change is made, or end the call where nobody says."""
    reason = text.strip()
    if not reason or len(reason) > LONGEST_REASON:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"say why, in reason, in at most {LONGEST_REASON} characters",
        )
    return reason


def caller_of(callers: Callers, context: Context) -> Caller:
    """Return who calls; the guard has let nobody else through."""
    caller = callers.of(context)
    if caller is None:
        raise RuntimeError("a caller that nobody knows came past the guard")
    return caller


async def limit_of(request: Any, context: Context, *, usual: int = 100, most: int = 1000) -> int:
    """Return how many things a request with the optional field ``limit`` asks for."""
    limit = int(request.limit) if request.HasField("limit") else usual
    if not 1 <= limit <= most:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"limit must be from 1 to {most}")
    return limit


@contextlib.asynccontextmanager
async def quota_errors(context: Context) -> AsyncIterator[None]:
    """End the call where the ledger cannot do what was asked, and say why."""
    try:
        yield
    except LedgerSilentError as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    except QuotaError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
