"""Who changed what."""

from __future__ import annotations

import msgspec

from extproc.control.audit import Audit
from extproc.control.pb import audit_pb2, audit_pb2_grpc
from extproc.control.services.convert import Context, limit_of, timestamp


class AuditService(audit_pb2_grpc.AuditServiceServicer):
    """Serves ``tidegate.v1.AuditService``."""

    def __init__(self, audit: Audit | None) -> None:
        self._audit = audit

    async def ListAudit(
        self, request: audit_pb2.ListAuditRequest, context: Context
    ) -> audit_pb2.ListAuditResponse:
        """Tell of the last changes."""
        limit = await limit_of(request, context)
        entries = [] if self._audit is None else await self._audit.newest(limit)
        return audit_pb2.ListAuditResponse(
            entries=[
                audit_pb2.AuditEntry(
                    at=timestamp(each.at),
                    who=each.who,
                    role=each.role,
                    peer=each.peer,
                    action=each.action,
                    target=each.target,
                    before=msgspec.json.encode(each.before).decode(),
                    after=msgspec.json.encode(each.after).decode(),
                    reason=each.reason,
                )
                for each in entries
            ]
        )
