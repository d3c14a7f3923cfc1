"""The control API over TLS, with tokens and with client certificates, by certificates made here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from grpc import aio

from extproc import app
from extproc.config import parse
from extproc.control.client import Access, connect
from extproc.control.pb import callers_pb2, modes_pb2
from extproc.control.pb.callers_pb2_grpc import CallerServiceStub
from extproc.control.pb.modes_pb2_grpc import ModeServiceStub
from extproc.stand.children import child
from extproc.stand.ports import free_port

CONFIG = """\
listen: {{control: "127.0.0.1:{port}"}}
control:
  tokens: {directory}/tokens.yaml
  directory: {directory}/kept
  tls: {{certificate: {directory}/server.pem, key: {directory}/server.key{clients}}}
identity: {{sources: [{{header: {{name: x-tenant-id, trusted: true}}}}]}}
tenants: {{pay: {{class: P0}}}}
pools: {{qwen: {{endpoints: {{static: ["127.0.0.1:9"]}}}}}}
"""
CLIENTS = ", client_ca: {directory}/ca.pem, clients: {{ann.ops: operator, board.ops: viewer}}"


def write(made: trustme.LeafCert, directory: Path, name: str) -> None:
    made.private_key_pem.write_to_path(directory / f"{name}.key")
    for each in made.cert_chain_pems:
        each.write_to_path(directory / f"{name}.pem", append=True)


@pytest.fixture
def authority(directory: Path) -> trustme.CA:
    """Who signs, with a certificate for the server and some for clients."""
    made = trustme.CA()
    made.cert_pem.write_to_path(directory / "ca.pem")
    write(made.issue_cert("127.0.0.1"), directory, "server")
    for name in ("ann.ops", "board.ops", "stranger.ops"):
        write(made.issue_cert(name), directory, name)
    others = trustme.CA()
    others.cert_pem.write_to_path(directory / "others-ca.pem")
    write(others.issue_cert("ann.ops"), directory, "forged")
    return made


@pytest.fixture
def port() -> int:
    """A free port."""
    return free_port()


@pytest.fixture
async def serving(
    request: pytest.FixtureRequest, authority: trustme.CA, directory: Path, port: int
) -> AsyncIterator[str]:
    """Serve the control API, with what the configuration says of clients; give its address."""
    clients = request.param.format(directory=directory)
    made = app.build(parse(CONFIG.format(directory=directory, port=port, clients=clients)))
    assert made.control is not None
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(made.control.serving())
        yield f"127.0.0.1:{port}"


async def who(address: str, directory: Path, *, name: str = "", **access: Any) -> tuple[str, str]:
    """Ask who calls, with the certificate of that name."""
    pair = {"certificate": directory / f"{name}.pem", "key": directory / f"{name}.key"}
    asked = Access(address, **{"ca": directory / "ca.pem"} | (pair if name else {}) | access)
    async with connect(asked) as channel:
        told = await CallerServiceStub(channel).GetCaller(callers_pb2.GetCallerRequest(), timeout=5)
    return told.who, told.role


async def refusal(*args: Any, **access: Any) -> grpc.StatusCode:
    with pytest.raises(aio.AioRpcError) as refused:
        await who(*args, **access)
    return refused.value.code()


@pytest.mark.parametrize("serving", [""], indirect=True)
async def test_tokens_over_tls(serving: str, directory: Path) -> None:
    assert await who(serving, directory, token="operator") == ("the-operator", "operator")
    assert await refusal(serving, directory) is grpc.StatusCode.UNAUTHENTICATED
    assert await refusal(serving, directory, token="wrong") is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("serving", [""], indirect=True)
async def test_neither_clear_text_nor_a_server_of_somebody_elses(
    serving: str, directory: Path
) -> None:
    unavailable = grpc.StatusCode.UNAVAILABLE
    assert await refusal(serving, directory, token="admin", ca=None) is unavailable
    others = directory / "others-ca.pem"
    assert await refusal(serving, directory, token="admin", ca=others) is unavailable


@pytest.mark.parametrize("serving", [CLIENTS], indirect=True)
async def test_client_certificates_have_the_roles_of_their_names(
    serving: str, directory: Path
) -> None:
    assert await who(serving, directory, name="ann.ops") == ("ann.ops", "operator")
    assert await who(serving, directory, name="board.ops") == ("board.ops", "viewer")
    certified = await refusal(serving, directory, name="stranger.ops")
    assert certified is grpc.StatusCode.UNAUTHENTICATED
    assert await refusal(serving, directory, name="forged") is grpc.StatusCode.UNAVAILABLE
    by_token_alone = await refusal(serving, directory, token="admin")
    assert by_token_alone is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("serving", [CLIENTS], indirect=True)
async def test_a_token_counts_more_than_the_certificate_beside_it(
    serving: str, directory: Path
) -> None:
    assert await who(serving, directory, name="board.ops", token="admin") == ("the-admin", "admin")
    wrong = await refusal(serving, directory, name="ann.ops", token="wrong")
    assert wrong is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("serving", [CLIENTS], indirect=True)
async def test_a_viewers_certificate_switches_nothing(serving: str, directory: Path) -> None:
    access = Access(
        serving,
        ca=directory / "ca.pem",
        certificate=directory / "board.ops.pem",
        key=directory / "board.ops.key",
    )
    async with connect(access) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await ModeServiceStub(channel).SetMode(
                modes_pb2.SetModeRequest(mode=modes_pb2.MODE_PROTECT, reason="x"), timeout=5
            )
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.e2e
@pytest.mark.parametrize("serving", [CLIENTS], indirect=True)
async def test_the_command_shows_the_certificate_of_its_environment(
    serving: str, directory: Path
) -> None:
    """As ``tidegate mode`` is used, with a certificate in place of a token; the audit has its name."""

    async def switch(name: str) -> tuple[int | None, str]:
        files = {
            "TIDEGATE_CONTROL_CERTIFICATE": str(directory / f"{name}.pem"),
            "TIDEGATE_CONTROL_KEY": str(directory / f"{name}.key"),
            "TIDEGATE_CONTROL_CA": str(directory / "ca.pem"),
        }
        words = ("mode", "set", "protect", "--reason", "peak", "--control", serving)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extproc", *words),
            env=dict(os.environ) | files,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode, said.decode()

    assert await switch("board.ops") == (1, "refused: board.ops is viewer; this is for operator\n")
    assert (await switch("forged"))[0] == 1
    code, said = await switch("ann.ops")
    assert code == 0, said
    (line,) = (directory / "kept" / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["who"] == "ann.ops"


@pytest.mark.e2e
@pytest.mark.parametrize("serving", [CLIENTS], indirect=True)
async def test_people_log_in_to_a_console_that_has_a_certificate(
    serving: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_CONTROL_CERTIFICATE", str(directory / "board.ops.pem"))
    monkeypatch.setenv("TIDEGATE_CONTROL_KEY", str(directory / "board.ops.key"))
    (directory / "viewer.token").write_text("viewer", encoding="utf-8")
    origin = f"http://127.0.0.1:{free_port()}"
    words = ["console", "--listen", origin.removeprefix("http://"), "--control", serving]
    files = ["--ca", str(directory / "ca.pem"), "--token-file", str(directory / "viewer.token")]
    command = [sys.executable, "-m", "extproc", *words, *files]
    async with child("console", command, directory), httpx.AsyncClient() as browser:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await browser.get(f"{origin}/healthz")
                    break
                await asyncio.sleep(0.05)
        reply = await browser.post(
            f"{origin}/api/login", json={"token": "operator"}, headers={"origin": origin}
        )
    assert (reply.status_code, reply.json()["who"]) == (200, "the-operator")
