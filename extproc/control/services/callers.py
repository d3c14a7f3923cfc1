"""Who calls."""

from __future__ import annotations

from extproc.control.auth import Callers
from extproc.control.pb import callers_pb2, callers_pb2_grpc
from extproc.control.services.convert import Context, caller_of


class CallerService(callers_pb2_grpc.CallerServiceServicer):
    """Serves ``tidegate.v1.CallerService``."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def GetCaller(
        self, request: callers_pb2.GetCallerRequest, context: Context
    ) -> callers_pb2.Caller:
        """Tell a caller's name and role."""
        caller = caller_of(self._callers, context)
        return callers_pb2.Caller(who=caller.who, role=caller.role.value)
