"""The thresholds: shown, changed and set back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from extproc.config import AdjustmentError, Changes, Config, named
from extproc.control.auth import Callers
from extproc.control.levers import Levers
from extproc.control.operations import Changed, Operations
from extproc.control.pb import thresholds_pb2, thresholds_pb2_grpc
from extproc.control.services.convert import Context, caller_of, reason_of
from extproc.control.settings import Settings

_KEYS = {
    "close": ("free_watermark", "close"),
    "open": ("free_watermark", "open"),
    "concurrency": ("concurrency",),
    "max_wait_seconds": ("max_wait",),
    "max_output_tokens": ("max_tokens",),
    "max_prompt_tokens": ("max_prompt_tokens",),
    "weight": ("weight",),
    "max_concurrency": ("max_concurrency",),
}
"""Where the configuration file says what a field says."""


class ThresholdService(thresholds_pb2_grpc.ThresholdServiceServicer):
    """Serves ``tidegate.v1.ThresholdService``."""

    def __init__(self, operations: Operations, levers: Levers, callers: Callers) -> None:
        self._operations = operations
        self._levers = levers
        self._callers = callers

    async def GetThresholds(
        self, request: thresholds_pb2.GetThresholdsRequest, context: Context
    ) -> thresholds_pb2.Thresholds:
        """Tell what is in force."""
        return thresholds(self._levers.config, self._operations.settings)

    async def SetThresholds(
        self, request: thresholds_pb2.SetThresholdsRequest, context: Context
    ) -> thresholds_pb2.SetThresholdsResponse:
        """Change what is given."""
        reason = await reason_of(request.reason, context)
        changes: Changes = {
            "classes": _changes(request.classes),
            "pools": _changes(request.pools),
        }
        if not any(True for _ in named(changes)):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no threshold is given")
        before, caller = self._now(), caller_of(self._callers, context)
        try:
            changed = await self._operations.set_thresholds(changes, caller, reason)
        except AdjustmentError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return self._told(before, changed)

    async def ResetThresholds(
        self, request: thresholds_pb2.ResetThresholdsRequest, context: Context
    ) -> thresholds_pb2.SetThresholdsResponse:
        """Go back to the configuration file's."""
        reason = await reason_of(request.reason, context)
        before, caller = self._now(), caller_of(self._callers, context)
        return self._told(before, await self._operations.reset_thresholds(caller, reason))

    def _now(self) -> thresholds_pb2.Thresholds:
        return thresholds(self._levers.config, self._operations.settings)

    def _told(
        self, before: thresholds_pb2.Thresholds, changed: Changed
    ) -> thresholds_pb2.SetThresholdsResponse:
        return thresholds_pb2.SetThresholdsResponse(
            before=before, after=self._now(), warnings=changed.warnings
        )


def thresholds(config: Config, settings: Settings) -> thresholds_pb2.Thresholds:
    """Return the thresholds of a configuration that is in force."""
    classes = [
        thresholds_pb2.ClassThresholds(
            name=name,
            close=each.free_watermark.close,
            open=each.free_watermark.open,
            concurrency=each.concurrency,
            max_wait_seconds=each.max_wait,
            max_output_tokens=each.max_tokens,
            max_prompt_tokens=each.max_prompt_tokens,
            weight=each.weight,
        )
        for name, each in config.classes.items()
    ]
    pools = [
        thresholds_pb2.PoolThresholds(name=name, max_concurrency=each.max_concurrency)
        for name, each in config.pools.items()
    ]
    changed = [".".join(path) for path, _ in named(settings.thresholds.changes)]
    return thresholds_pb2.Thresholds(classes=classes, pools=pools, changed=sorted(changed))


def _changes(
    given: Iterable[thresholds_pb2.ClassThresholds | thresholds_pb2.PoolThresholds],
) -> dict[str, dict[str, Any]]:
    """Return what is given in the configuration's words."""
    changes: dict[str, dict[str, Any]] = {}
    for each in given:
        target = changes.setdefault(each.name, {})
        for field, value in each.ListFields():
            path = _KEYS.get(field.name)
            if path is not None:
                inner = target
                for key in path[:-1]:
                    inner = inner.setdefault(key, {})
                inner[path[-1]] = value
    return changes
