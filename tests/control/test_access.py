"""Who may call what: nobody is let in by default, and every method has its role."""

from __future__ import annotations

import hmac
import importlib
import json
import logging
import pkgutil
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from extproc import app
from extproc.config import ConfigError, Role, parse
from extproc.control import auth, pb
from extproc.control.auth import Callers, digest, may, token_line
from extproc.control.pb import callers_pb2, callers_pb2_grpc
from extproc.control.room import NEEDED

ROLES = [role.value for role in Role]


def methods() -> dict[str, MethodDescriptor]:
    """Return every method of the API by its full name."""
    found = {}
    for module in pkgutil.iter_modules(pb.__path__):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(f"{pb.__name__}.{module.name}").DESCRIPTOR
            for service in file.services_by_name.values():
                for each in service.methods:
                    found[f"/{service.full_name}/{each.name}"] = each
    return found


async def call(channel: aio.Channel, name: str) -> grpc.StatusCode:
    """Call a method with an empty request and return how that ended."""
    method = methods()[name]
    request = GetMessageClass(method.input_type)()
    answer = GetMessageClass(method.output_type).FromString
    try:
        if method.client_streaming:
            await channel.stream_unary(name, type(request).SerializeToString, answer)(
                iter([request])
            )
        elif method.server_streaming:
            made: Any = channel.unary_stream(name, type(request).SerializeToString, answer)(request)
            async for _ in made:
                break
        else:
            await channel.unary_unary(name, type(request).SerializeToString, answer)(request)
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("name", sorted(methods()))
async def test_each_method_is_for_its_role_and_those_above(served: Any, name: str) -> None:
    """Every method that the protos describe: a new one cannot be forgotten."""
    refused = set()
    for role in ROLES:
        if await call(await served.as_(role), name) is grpc.StatusCode.PERMISSION_DENIED:
            refused.add(role)

    assert refused == {role for role in ROLES if not may(Role(role), NEEDED[name])}
    for nobody in ("", "guess", "x" * 5000):
        code = await call(await served.as_(nobody), name)
        assert code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_callers_can_ask_who_they_are(served: Any, role: str) -> None:
    stub = callers_pb2_grpc.CallerServiceStub(await served.as_(role))
    caller = await stub.GetCaller(callers_pb2.GetCallerRequest())
    assert (caller.who, caller.role) == (f"the-{role}", role)


def test_no_method_lacks_a_role_and_only_changes_ask_for_more_than_looking() -> None:
    assert set(NEEDED) == set(methods())
    for name, role in NEEDED.items():
        verb = name.rpartition("/")[2]
        looks = verb.startswith(("Get", "List", "Watch", "Explain", "Summarize", "DryRun"))
        assert looks == (role is Role.VIEWER), name


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.VIEWER, {Role.VIEWER}),
        (Role.OPERATOR, {Role.VIEWER, Role.OPERATOR}),
        (Role.ADMIN, {Role.VIEWER, Role.OPERATOR, Role.ADMIN}),
        (Role.POD, {Role.POD}),
    ],
)
def test_roles_include_those_below_and_a_pod_is_apart(role: Role, allowed: set[Role]) -> None:
    assert {needed for needed in Role if may(role, needed)} == allowed


async def test_what_no_one_named_is_for_admins(served: Any, monkeypatch: Any) -> None:
    monkeypatch.delitem(NEEDED, "/tidegate.v1.StateService/GetState")
    guard = auth.Guard(Callers({}, {}), NEEDED)

    class Context:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return (("user-agent", "x"),)

        def auth_context(self) -> dict[str, list[bytes]]:
            return {"x509_common_name": [b"ops"]}

        async def abort(self, code: grpc.StatusCode, details: str) -> None:
            raise PermissionError(code, details)

    context: Any = Context()
    with pytest.raises(PermissionError) as nobody:
        await guard._admit("/tidegate.v1.StateService/GetState", context)
    assert nobody.value.args[0] is grpc.StatusCode.UNAUTHENTICATED

    guard = auth.Guard(Callers({}, {"ops": Role.OPERATOR}), NEEDED)
    with pytest.raises(PermissionError) as operator:
        await guard._admit("/tidegate.v1.StateService/GetState", context)
    assert operator.value.args == (
        grpc.StatusCode.PERMISSION_DENIED,
        "ops is operator; this is for admin",
    )


async def test_all_digests_are_compared_whoever_calls(served: Any, monkeypatch: Any) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)

    for token in ("viewer", "admin", "guess"):
        compared.clear()
        await call(await served.as_(token), "/tidegate.v1.StateService/GetState")
        assert compared == [digest(role).encode() for role in ROLES]


async def test_a_fault_of_ours_is_told_by_its_kind_and_place(
    served: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ValueError("with what the caller" + " sent")

    monkeypatch.setattr(served.room.operations.audit, "newest", broken)

    code = await call(await served.as_("viewer"), "/tidegate.v1.AuditService/ListAudit")

    assert code is grpc.StatusCode.INTERNAL
    (record,) = [each for each in caplog.records if each.message == "control call failed"]
    assert vars(record)["error"] == "ValueError"
    assert "what the caller sent" not in json.dumps(
        [vars(each) for each in caplog.records], default=str
    )


async def test_a_refused_token_is_not_logged(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await call(await served.as_("secret-canary"), "/tidegate.v1.StateService/GetState")

    assert any("nobody known calls" in record.message for record in caplog.records)
    assert "secret-canary" not in json.dumps(
        [vars(record) for record in caplog.records], default=str
    )


def test_without_tokens_there_is_no_control_api(directory: Path) -> None:
    tidegate = app.build(parse(f'listen: {{control: "unix://{directory}/control.sock"}}'))

    assert tidegate.control is None
    assert list(directory.iterdir()) == [directory / "tokens.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "- a",
        "abc: {who: me, role: admin}",
        f"{digest('t')}: {{who: me, role: king}}",
        f"{digest('t')}: {{who: '', role: admin}}",
        f"{digest('t')}: {{role: admin}}",
        f"{digest('t')}: admin",
    ],
)
def test_a_token_file_that_says_something_else_is_refused(directory: Path, text: str) -> None:
    (directory / "tokens.yaml").write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match="SHA-256 of a token"):
        app.build(parse(f"control: {{tokens: {directory}/tokens.yaml}}"))


def test_a_token_line_can_be_read_and_does_not_hold_the_token(directory: Path) -> None:
    line = token_line("s3cret", "alice", Role.OPERATOR)

    assert line == (
        "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0: "
        "{role: operator, who: alice}\n"
    )


@pytest.mark.parametrize(
    ("listen", "more", "problem"),
    [
        ("127.0.0.1:9091", "", None),
        ("[::1]:9091", "", None),
        ("localhost:9091", "", None),
        ("unix:///run/control.sock", "", None),
        ("0.0.0.0:9091", ", plaintext: true", None),
        ("0.0.0.0:9091", "", "tokens would cross the network"),
        ("127.0.0.1.example.com:9091", "", "tokens would cross the network"),
        ("0.0.0.0:9091", ", tls: {certificate: a, key: b}", None),
        ("0.0.0.0:9091", ", tls: {certificate: a, key: b, client_ca: c}", "go together"),
    ],
)
def test_tokens_do_not_cross_a_network_in_the_clear(
    listen: str, more: str, problem: str | None
) -> None:
    text = f'listen: {{control: "{listen}"}}\ncontrol: {{tokens: t.yaml{more}}}'
    if problem is None:
        assert parse(text).control.enabled
        return
    with pytest.raises(ConfigError, match=problem):
        parse(text)
