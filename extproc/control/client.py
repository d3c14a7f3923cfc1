"""The other end of the control API, for the command, the console and whoever else operates.

Rule this module keeps: a token is sent to the address it was given for and nowhere else, and stands in
no error's text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

# Who watches is back soon after Tidegate is; by itself gRPC waits up to two minutes.
_OPTIONS = (("grpc.max_reconnect_backoff_ms", 2000),)


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a control API.

    Attributes:
        address: ``host:port`` or ``unix:///path``, as in ``listen.control``.
        token: the caller's, or "" where a client certificate does.
        ca: a file with the certificates that the server's must be signed by; None: no TLS.
        certificate, key: files of the client's certificate, or None.
    """

    address: str
    token: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __repr__(self) -> str:
        return f"<Access to {self.address}>"


def connect(access: Access) -> aio.Channel:
    """Return a channel for the generated stubs; to be closed, or used with ``async with``.

    Raises:
        OSError: a file cannot be read.
    """
    target = access.address.replace("unix://", "unix:")
    interceptors: list[aio.ClientInterceptor] = [
        _UnaryUnary(access.token),
        _UnaryStream(access.token),
        _StreamUnary(access.token),
    ]
    if access.ca is None:
        return aio.insecure_channel(target, _OPTIONS, interceptors=interceptors)
    credentials = grpc.ssl_channel_credentials(
        access.ca.read_bytes(),
        None if access.key is None else access.key.read_bytes(),
        None if access.certificate is None else access.certificate.read_bytes(),
    )
    return aio.secure_channel(target, credentials, _OPTIONS, interceptors=interceptors)


class _Bearer:
    """Adds the token to every call of one kind; gRPC has one class for each kind."""

    def __init__(self, token: str) -> None:
        self._token = token

    def _with_token(self, details: aio.ClientCallDetails) -> aio.ClientCallDetails:
        metadata = aio.Metadata(*(details.metadata or ()))
        if self._token:
            metadata.add("authorization", f"Bearer {self._token}")
        return aio.ClientCallDetails(
            method=details.method,
            timeout=details.timeout,
            metadata=metadata,
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
        )


class _UnaryUnary(_Bearer, aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self,
        continuation: Callable[..., Any],
        client_call_details: aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        """See `grpc.aio.UnaryUnaryClientInterceptor`."""
        return await continuation(self._with_token(client_call_details), request)


class _UnaryStream(_Bearer, aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(
        self,
        continuation: Callable[..., Any],
        client_call_details: aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        """See `grpc.aio.UnaryStreamClientInterceptor`."""
        return await continuation(self._with_token(client_call_details), request)


class _StreamUnary(_Bearer, aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self,
        continuation: Callable[..., Any],
        client_call_details: aio.ClientCallDetails,
        request_iterator: Any,
    ) -> Any:
        """See `grpc.aio.StreamUnaryClientInterceptor`."""
        return await continuation(self._with_token(client_call_details), request_iterator)
