"""Builds the control API, restores what was set, and serves both.

Rules this module keeps:

* Where the configuration names nobody who may call, nothing listens and nothing is written.
* The listener is not Envoy's: what operators ask for waits for its own connections, and Envoy has no
  way to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from extproc import __version__
from extproc.config import AdjustmentError, Config, ConfigError, Problem, Role, load_tokens
from extproc.control.audit import Audit
from extproc.control.auth import Callers, Guard
from extproc.control.levers import Levers
from extproc.control.operations import Operations
from extproc.control.pb import (
    audit_pb2_grpc,
    callers_pb2_grpc,
    compensation_pb2_grpc,
    decisions_pb2_grpc,
    load_reports_pb2_grpc,
    modes_pb2_grpc,
    state_pb2_grpc,
    tenants_pb2_grpc,
    thresholds_pb2_grpc,
)
from extproc.control.quota_desk import make_quota_desk
from extproc.control.services.audit import AuditService
from extproc.control.services.callers import CallerService
from extproc.control.services.compensation import CompensationService
from extproc.control.services.decisions import DecisionService
from extproc.control.services.load_reports import Heard, LoadReportService
from extproc.control.services.modes import ModeService
from extproc.control.services.state import StateService, View
from extproc.control.services.tenants import TenantService
from extproc.control.services.thresholds import ThresholdService
from extproc.control.settings import SettingsFile, UnreadableSettingsError
from extproc.core.capacity import Pool
from extproc.core.controller import Line
from extproc.edge.server import CannotListenError, bind
from extproc.quota.plans import quota_plans
from extproc.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

NEEDED = {
    "/tidegate.v1.CallerService/GetCaller": Role.VIEWER,
    "/tidegate.v1.StateService/GetState": Role.VIEWER,
    "/tidegate.v1.StateService/WatchState": Role.VIEWER,
    "/tidegate.v1.ModeService/GetMode": Role.VIEWER,
    "/tidegate.v1.ModeService/SetMode": Role.OPERATOR,
    "/tidegate.v1.ThresholdService/GetThresholds": Role.VIEWER,
    "/tidegate.v1.ThresholdService/SetThresholds": Role.OPERATOR,
    "/tidegate.v1.ThresholdService/ResetThresholds": Role.OPERATOR,
    "/tidegate.v1.DecisionService/ListDecisions": Role.VIEWER,
    "/tidegate.v1.DecisionService/WatchDecisions": Role.VIEWER,
    "/tidegate.v1.DecisionService/ExplainDecision": Role.VIEWER,
    "/tidegate.v1.DecisionService/SummarizeDecisions": Role.VIEWER,
    "/tidegate.v1.TenantService/ListTenants": Role.VIEWER,
    "/tidegate.v1.TenantService/GetTenant": Role.VIEWER,
    "/tidegate.v1.TenantService/ListEntries": Role.VIEWER,
    "/tidegate.v1.TenantService/AdjustQuota": Role.ADMIN,
    "/tidegate.v1.CompensationService/DryRunCompensation": Role.VIEWER,
    "/tidegate.v1.CompensationService/ListCampaigns": Role.VIEWER,
    "/tidegate.v1.CompensationService/ApplyCompensation": Role.ADMIN,
    "/tidegate.v1.LoadReportService/ReportLoad": Role.POD,
    "/tidegate.v1.LoadReportService/StreamLoad": Role.POD,
    "/tidegate.v1.AuditService/ListAudit": Role.VIEWER,
}
"""The role that each method asks for."""

_LARGEST_MESSAGE = 4 << 20
_GRACE_SECONDS = 1.0


def make_operations(config: Config, levers: Levers, wall_clock: Callable[[], float]) -> Operations:
    """Return the operations of a Tidegate, with what was set restored.

    Where there is no control API, others may set what is in force here; nothing of it is kept.

    Raises:
        ConfigError: a file of the control API cannot be used.
    """
    directory = config.control.directory
    if not config.control.enabled:
        return Operations(levers, file=None, audit=None, wall_clock=wall_clock)
    _prepare(directory)
    kept = directory / "settings.json"
    operations = Operations(
        levers,
        file=SettingsFile(kept),
        audit=Audit(directory / "audit.jsonl", wall_clock),
        wall_clock=wall_clock,
    )
    try:
        operations.restore()
    except (UnreadableSettingsError, AdjustmentError) as error:
        raise _unusable(kept, str(error)) from error
    return operations


class ControlRoom:
    """The control API of one Tidegate.

    Attributes:
        operations: its settings.
        recorder: its decisions.
    """

    def __init__(
        self,
        config: Config,
        levers: Levers,
        operations: Operations,
        recorder: Recorder,
        *,
        pools: Mapping[str, Pool],
        lines: Mapping[str, Line],
        heard: Heard,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """Raises ConfigError where the token file cannot be used."""
        self._config = config
        self._callers = Callers(load_tokens(config), _certificates(config))
        self.operations = operations
        self.recorder = recorder
        self._draining = False
        self._quota = make_quota_desk(config, wall_clock)
        self._reports = LoadReportService(pools, heard, clock)
        self._levers = levers
        self._view = View(
            pools=pools,
            lines=lines,
            gate=levers.gate,
            recorder=recorder,
            version=__version__,
            instance=f"{socket.gethostname()}:{os.getpid()}",
            clock=clock,
            wall_clock=wall_clock,
            started=clock(),
            draining=lambda: self._draining,
        )

    def follow(self, config: Config) -> None:
        """Go over to another configuration, as far as that can change while serving."""
        if self._quota is not None:
            self._quota.follow(quota_plans(config))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve inside the block.

        Raises:
            CannotListenError: the address cannot be bound.
        """
        server = self._server()
        await server.start()
        log.info("control API", extra={"address": self._config.listen.control})
        try:
            yield
        finally:
            await server.stop(_GRACE_SECONDS)
            await self.operations.finish()
            if self._quota is not None:
                self._quota.close()

    def drain(self) -> None:
        """Hear that a stop was asked for; watchers see it."""
        self._draining = True

    def _server(self) -> aio.Server:
        server = aio.server(
            interceptors=(Guard(self._callers, NEEDED),),
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
                ("grpc.max_concurrent_streams", 256),
            ),
        )
        services: list[tuple[Callable[[Any, aio.Server], None], Any]] = [
            (
                state_pb2_grpc.add_StateServiceServicer_to_server,
                StateService(self.operations, self._view),
            ),
            (
                modes_pb2_grpc.add_ModeServiceServicer_to_server,
                ModeService(self.operations, self._levers.gate, self._callers),
            ),
            (
                thresholds_pb2_grpc.add_ThresholdServiceServicer_to_server,
                ThresholdService(self.operations, self._levers, self._callers),
            ),
            (
                decisions_pb2_grpc.add_DecisionServiceServicer_to_server,
                DecisionService(self.recorder),
            ),
            (
                tenants_pb2_grpc.add_TenantServiceServicer_to_server,
                TenantService(self._levers, self._quota, self._callers, self.operations.audit),
            ),
            (
                compensation_pb2_grpc.add_CompensationServiceServicer_to_server,
                CompensationService(
                    self._quota, self._callers, self.operations.audit, self._view.wall_clock
                ),
            ),
            (load_reports_pb2_grpc.add_LoadReportServiceServicer_to_server, self._reports),
            (
                audit_pb2_grpc.add_AuditServiceServicer_to_server,
                AuditService(self.operations.audit),
            ),
            (
                callers_pb2_grpc.add_CallerServiceServicer_to_server,
                CallerService(self._callers),
            ),
        ]
        for add, service in services:
            add(service, server)
        bind(server, self._config.listen.control, "listen.control", self._credentials())
        return server

    def _credentials(self) -> grpc.ServerCredentials | None:
        tls = self._config.control.tls
        if tls is None:
            return None
        ca = None if tls.client_ca is None else _read(tls.client_ca)
        pair = (_read(tls.key), _read(tls.certificate))
        return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)


def _certificates(config: Config) -> Mapping[str, Role]:
    return {} if config.control.tls is None else config.control.tls.clients


def _prepare(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(directory, f"{error.strerror}: set control.directory") from error
    if not os.access(directory, os.W_OK):
        raise _unusable(directory, "it cannot be written to: set control.directory")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unusable(file, str(error.strerror)) from error


def _unusable(file: Path, reason: str) -> ConfigError:
    return ConfigError(file, (Problem(None, "control", "", reason),))


__all__ = ["NEEDED", "CannotListenError", "ControlRoom"]
