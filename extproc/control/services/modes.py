"""The mode: shown and switched."""

from __future__ import annotations

import grpc

from extproc.control.auth import Callers
from extproc.control.operations import Operations
from extproc.control.pb import modes_pb2, modes_pb2_grpc
from extproc.control.services.convert import Context, caller_of, mode_of, mode_state, reason_of
from extproc.core.modes import Mode, ModeGate


class ModeService(modes_pb2_grpc.ModeServiceServicer):
    """Serves ``tidegate.v1.ModeService``."""

    def __init__(self, operations: Operations, gate: ModeGate, callers: Callers) -> None:
        self._operations = operations
        self._gate = gate
        self._callers = callers

    async def GetMode(
        self, request: modes_pb2.GetModeRequest, context: Context
    ) -> modes_pb2.ModeState:
        """Tell the mode that is in force."""
        return mode_state(self._operations.settings.mode, self._gate)

    async def SetMode(
        self, request: modes_pb2.SetModeRequest, context: Context
    ) -> modes_pb2.SetModeResponse:
        """Switch to another one."""
        mode = mode_of(request.mode)
        if mode is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"mode must be one of {', '.join(Mode)}"
            )
        reason = await reason_of(request.reason, context)
        before = mode_state(self._operations.settings.mode, self._gate)
        caller = caller_of(self._callers, context)
        changed = await self._operations.set_mode(mode, caller, reason, evict=request.evict)
        return modes_pb2.SetModeResponse(
            before=before,
            after=mode_state(changed.after.mode, self._gate),
            turned_away=changed.effect.turned_away,
            evicted=changed.effect.evicted,
            warnings=changed.warnings,
        )
