"""Whatever a caller of any role sends: an answer or a declared refusal, and no fault of ours in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc import app
from extproc.config import parse
from extproc.control.pb import (
    audit_pb2,
    callers_pb2,
    compensation_pb2,
    decisions_pb2,
    load_reports_pb2,
    modes_pb2,
    state_pb2,
    tenants_pb2,
    thresholds_pb2,
)
from extproc.control.room import NEEDED

FILES = (
    audit_pb2,
    callers_pb2,
    compensation_pb2,
    decisions_pb2,
    load_reports_pb2,
    modes_pb2,
    state_pb2,
    tenants_pb2,
    thresholds_pb2,
)
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{each.name}": each
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for each in service.methods
}
DECLARED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
PLAIN = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

known = st.sampled_from(
    ["qwen", "e", "pay", "marketing", "P0", "P2", "normal", "2026-01-01", "big"]
)
texts = known | st.text(max_size=40) | st.sampled_from(["\0", "x" * 5000, "' OR 1=1 --", "../../x"])


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Return what a field can hold, its limits among it."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return messages(field.message_type)
    if field.enum_type is not None:
        return st.sampled_from([each.number for each in field.enum_type.values]) | st.integers(
            -(2**31), 2**31 - 1
        )
    return {
        FieldDescriptor.CPPTYPE_STRING: st.binary(max_size=20)
        if field.type == FieldDescriptor.TYPE_BYTES
        else texts,
        FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
        FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
        FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
        FieldDescriptor.CPPTYPE_DOUBLE: st.floats() | st.floats(0.0, 1.0),
    }[field.cpp_type]


def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Return messages of a kind, any of whose fields may be set to anything that they can hold."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in kind.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
            fields[field.name] = st.dictionaries(values(key), values(value), max_size=3)
        elif field.is_repeated:
            fields[field.name] = st.lists(values(field), max_size=3)
        else:
            fields[field.name] = values(field)
    made = st.fixed_dictionaries({}, optional=fields)
    return made.map(lambda chosen: GetMessageClass(kind)(**chosen))


@pytest.fixture(params=["without a ledger", "with one"])
async def any_served(
    request: Any, config_text: str, directory: Path, make_served: Any
) -> AsyncIterator[Any]:
    """A Tidegate with and one without a ledger."""
    settings = yaml.safe_load(config_text)
    if request.param == "with one":
        settings["plans"] = {"gold": {"requests_per_minute": 60, "quota": {"tokens": 1000}}}
        settings["tenants"]["pay"]["plan"] = "gold"
        settings["state"] = {
            "database": f"sqlite:///{directory}/ledger.db",
            "outbox": f"{directory}/outbox.db",
        }
    tidegate = app.build(parse(yaml.safe_dump(settings)))
    tidegate.pools["qwen"].join("e")
    async with AsyncExitStack() as stack:
        yield await make_served(tidegate, directory, stack)


async def code_of(channel: Any, name: str, request: bytes) -> grpc.StatusCode:
    """Send these bytes to a method; return how that ended, or was going at its first answer."""
    method = METHODS[name]
    try:
        if method.client_streaming:
            await channel.stream_unary(name)(iter([request, request]))
        elif method.server_streaming:
            async for _ in channel.unary_stream(name)(request):
                break
        else:
            await channel.unary_unary(name)(request)
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of faults of ours."""
    return [
        f"{each.getMessage()} {getattr(each, 'error', '')} {getattr(each, 'traceback', '')}"
        for each in caplog.records
        if each.levelno >= logging.ERROR
    ]


def test_every_method_is_tried() -> None:
    assert set(METHODS) == set(NEEDED)


@pytest.mark.parametrize("name", sorted(METHODS))
@PLAIN
@given(data=st.data())
async def test_requests_of_any_kind_are_answered_or_refused(
    any_served: Any, caplog: pytest.LogCaptureFixture, name: str, data: st.DataObject
) -> None:
    request = data.draw(messages(METHODS[name].input_type))
    channel = await any_served.as_(NEEDED[name].value)

    caplog.clear()

    code = await code_of(channel, name, request.SerializeToString())

    assert faults(caplog) == []
    assert code in DECLARED


@pytest.mark.parametrize("token", ["nobody", "admin"])
@pytest.mark.parametrize("name", sorted(METHODS))
@settings(PLAIN, max_examples=10)
@given(request=st.binary(max_size=200))
async def test_bytes_of_any_kind_are_no_fault_of_ours(
    served: Any, caplog: pytest.LogCaptureFixture, name: str, token: str, request: bytes
) -> None:
    caplog.clear()

    code = await code_of(await served.as_(token), name, request)

    assert faults(caplog) == []
    if token == "nobody":
        assert code is grpc.StatusCode.UNAUTHENTICATED
