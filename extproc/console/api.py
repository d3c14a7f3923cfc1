"""The control API, called in the name of whoever is logged in.

Rules this module keeps:

* Every call carries the token of the person who asked: roles are judged there and nowhere else, and
  the audit names people, not the console.
* One connection for all of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from extproc.control.pb import (
    audit_pb2,
    callers_pb2,
    callers_pb2_grpc,
    compensation_pb2,
    decisions_pb2,
    modes_pb2,
    state_pb2,
    state_pb2_grpc,
    tenants_pb2,
    thresholds_pb2,
)

SECONDS = 10.0
"""How long a single answer may take."""

_STREAM_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Method:
    """A method as gRPC knows it."""

    path: str
    request: type[Message]
    response: type[Message]
    streams: bool


def _methods(*files: FileDescriptor) -> Mapping[str, Method]:
    return {
        f"{service.name}/{each.name}": Method(
            f"/{service.full_name}/{each.name}",
            GetMessageClass(each.input_type),
            GetMessageClass(each.output_type),
            each.server_streaming,
        )
        for file in files
        for service in file.services_by_name.values()
        for each in service.methods
    }


METHODS = _methods(
    audit_pb2.DESCRIPTOR,
    compensation_pb2.DESCRIPTOR,
    decisions_pb2.DESCRIPTOR,
    modes_pb2.DESCRIPTOR,
    tenants_pb2.DESCRIPTOR,
    thresholds_pb2.DESCRIPTOR,
)
"""What pages may call, such as ``ModeService/SetMode``. State comes over the websocket."""


class ControlApi:
    """The control API behind a channel that has no token of its own.

    All methods raise `grpc.aio.AioRpcError` where the API refuses or cannot be reached.
    """

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel

    async def caller(self, token: str) -> callers_pb2.Caller:
        """Return whose token this is."""
        stub = callers_pb2_grpc.CallerServiceStub(self._channel)
        request = callers_pb2.GetCallerRequest()
        caller: callers_pb2.Caller = await stub.GetCaller(
            request, metadata=_bearer(token), timeout=SECONDS
        )
        return caller

    async def call(self, method: Method, request: Message, token: str) -> Message:
        """Return the answer of a method that gives one."""
        single: Any = self._channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        answer: Message = await single(request, metadata=_bearer(token), timeout=SECONDS)
        return answer

    async def stream(self, method: Method, request: Message, token: str) -> AsyncGenerator[Message]:
        """Yield the answers of a method that gives many."""
        many: Any = self._channel.unary_stream(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        answers = many(request, metadata=_bearer(token), timeout=_STREAM_SECONDS)
        try:
            async for answer in answers:
                yield answer
        finally:
            answers.cancel()

    async def states(self, token: str) -> AsyncGenerator[state_pb2.State]:
        """Yield the state, once a second and when the mode changes, until the connection ends."""
        stub = state_pb2_grpc.StateServiceStub(self._channel)
        states = stub.WatchState(state_pb2.WatchStateRequest(), metadata=_bearer(token))
        try:
            async for state in states:
                yield state
        finally:
            states.cancel()


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)
