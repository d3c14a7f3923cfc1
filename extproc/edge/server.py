"""The gRPC server that Envoy talks to: ext_proc, access log and health on one listener.

Rule this module keeps: an address where another process listens is left to it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health

_BODY_MARGIN = 1 << 20
"""Bytes that a message may carry beside the body: headers, attributes, metadata."""


class CannotListenError(RuntimeError):
    """An address cannot be bound; the text says which key of the configuration to change."""

    def __init__(self, address: str, key: str) -> None:
        super().__init__(
            f"cannot listen on {address}: it is taken, not of this machine, or in a folder that is "
            f"not there; change {key}"
        )


def build(
    handlers: Sequence[grpc.GenericRpcHandler], address: str, *, max_body: int
) -> tuple[aio.Server, health.HealthServicer]:
    """Return a server bound to ``address``, not yet started, and the health it reports.

    Raises:
        CannotListenError: the address cannot be bound.
    """
    server = aio.server(
        options=(
            # Envoy keeps connections alive with pings that gRPC's default would take for an attack.
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            # Every exchange is one stream, all on a few connections; bursts must not be refused.
            ("grpc.max_concurrent_streams", 1 << 20),
            ("grpc.server.max_pending_requests", 1 << 16),
            ("grpc.server.max_pending_requests_hard_limit", 1 << 17),
            ("grpc.max_receive_message_length", max_body + _BODY_MARGIN),
            ("grpc.max_send_message_length", max_body + _BODY_MARGIN),
            # Two processes on one port would share the traffic without knowing of each other.
            ("grpc.so_reuseport", 0),
        )
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    bind(server, address, "listen.processor")
    return server, servicer


def bind(
    server: aio.Server,
    address: str,
    key: str,
    credentials: grpc.ServerCredentials | None = None,
) -> None:
    """Bind a server to the address that the configuration's ``key`` gives, with TLS or without.

    Raises:
        CannotListenError: the address cannot be bound.
    """
    problem = CannotListenError(address, key)
    path = address.removeprefix("unix://")
    # gRPC would take the socket's file away from whoever listens there.
    if path != address and _listens(path):
        raise problem
    target = address.replace("unix://", "unix:")
    try:
        if credentials is None:
            server.add_insecure_port(target)
        else:
            server.add_secure_port(target, credentials)
    except RuntimeError as error:
        raise problem from error


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:  # no such file, or one that a process left when it was killed
            return False
    return True
