"""Who calls the control API, and whether that caller may.

Rules this module keeps:

* A caller has one role: by the bearer token in ``authorization``, or by the client certificate.
* A token is known by its SHA-256. All digests are compared, each in constant time, so that an answer's
  timing tells nothing about any of them.
* Every method names who may call it. One that names nobody is for admins.
* Whoever is nobody learns only that; no token, and nothing of one, is logged. What they send is not read.
* A fault of ours ends the call. It is logged by its kind and its place, not by its message, which may
  quote what the caller sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import yaml
from google.protobuf.message import DecodeError
from grpc import aio

from extproc.config import Role, Token

log = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_LADDER = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
_LONGEST_TOKEN = 1024
"""Characters; what is longer is no token of ours, and is not hashed."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, in which role, and from where, as gRPC names peers."""

    who: str
    role: Role
    peer: str


def digest(token: str) -> str:
    """Return what the token file holds in a token's place."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def token_line(made: str, who: str, role: Role) -> str:
    """Return what the token file says of a token."""
    owner = {"who": who, "role": role.value}
    return yaml.safe_dump({digest(made): owner}, default_flow_style=None, width=1000)


class Callers:
    """Knows all callers.

    Args:
        tokens: whose token it is, by the token's SHA-256 in lower-case hex.
        certificates: roles by the name in a client certificate.
    """

    def __init__(self, tokens: Mapping[str, Token], certificates: Mapping[str, Role]) -> None:
        self._tokens = tuple((known.encode(), token) for known, token in tokens.items())
        self._certificates = dict(certificates)

    def of(self, context: aio.ServicerContext[Any, Any]) -> Caller | None:
        """Return who calls, or None where that is nobody we know."""
        peer = str(context.peer())
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                scheme, _, token = str(value).partition(" ")
                found = self._owner(token.strip()) if scheme.lower() == "bearer" else None
                return None if found is None else Caller(found.who, found.role, peer)
        names = context.auth_context()
        for kind in ("x509_subject_alternative_name", "x509_common_name"):
            for name in names.get(kind, ()):
                role = self._certificates.get(name.decode("utf-8", "replace"))
                if role is not None:
                    return Caller(name.decode(), role, peer)
        return None

    def _owner(self, token: str) -> Token | None:
        if len(token) > _LONGEST_TOKEN:
            return None
        presented, found = digest(token).encode(), None
        for known, owner in self._tokens:
            if hmac.compare_digest(presented, known):
                found = owner
        return found


def may(role: Role, needed: Role) -> bool:
    """Say whether a role includes the one that is needed."""
    if role not in _LADDER or needed not in _LADDER:
        return role is needed
    return _LADDER.index(role) >= _LADDER.index(needed)


class Guard(aio.ServerInterceptor):
    """Lets calls through to their methods, or ends them.

    Args:
        callers: who is who.
        needed: the role that each method asks for, by its full name; others are for admins.
    """

    def __init__(self, callers: Callers, needed: Mapping[str, Role]) -> None:
        self._callers = callers
        self._needed = dict(needed)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        return _guarded(handler, lambda context: self._admit(method, context))

    async def _admit(self, method: str, context: aio.ServicerContext[Any, Any]) -> None:
        caller = self._callers.of(context)
        if caller is None:
            log.warning("nobody known calls", extra={"method": method, "peer": context.peer()})
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "give a token that control.tokens knows, as authorization: Bearer TOKEN",
            )
        needed = self._needed.get(method, Role.ADMIN)
        if not may(caller.role, needed):
            log.warning("a caller may not", extra={"method": method, "who": caller.who})
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{caller.who} is {caller.role}; this is for {needed}",
            )


def _guarded(
    handler: Handler, admit: Callable[[aio.ServicerContext[Any, Any]], Awaitable[None]]
) -> Handler:
    """Return a handler that asks first, and reads what was sent only then."""
    method: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )

    read: Any = handler.request_deserializer

    async def each_read(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for request in requests:
            yield read(request)

    receive = each_read if handler.request_streaming else read

    async def single(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        await admit(context)
        async with _faults_told(context):
            return await method(receive(request), context)

    async def stream(request: Any, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        await admit(context)
        async with _faults_told(context):
            async for response in method(receive(request), context):
                yield response

    make: Any = _MAKERS[handler.request_streaming, handler.response_streaming]
    guarded: Handler = make(
        stream if handler.response_streaming else single, None, handler.response_serializer
    )
    return guarded


@contextlib.asynccontextmanager
async def _faults_told(context: aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    try:
        yield
    except aio.AbortError:
        raise
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "that is no message of this method")
    except Exception as error:
        place = "".join(traceback.format_tb(error.__traceback__))
        log.error("control call failed", extra={"error": type(error).__name__, "traceback": place})
        await context.abort(grpc.StatusCode.INTERNAL, "the call failed; the log says where")


_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
