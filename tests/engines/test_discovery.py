"""Where the endpoints of a pool come from, and what is said when they cannot be told."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest

from extproc.config import Endpoints
from extproc.engines.discovery import MAX_FILE, DiscoveryError, File, Source, resolve, source


async def complaint(source: Source) -> str:
    with pytest.raises(DiscoveryError) as caught:
        await source.read()
    return str(caught.value)


async def test_a_static_list_never_changes() -> None:
    static = source(Endpoints(static=("10.0.0.1:8000", "10.0.0.2:8000")))
    assert await static.read() == {"10.0.0.1:8000", "10.0.0.2:8000"}
    assert static.period is None


async def test_a_name_in_dns() -> None:
    asked = []

    async def lookup(host: str, port: int) -> Iterable[str]:
        asked.append((host, port))
        return ["10.0.0.1", "10.0.0.1", "fd00::1"]

    dns = source(Endpoints(dns="vllm.svc", port=8000), lookup)
    assert await dns.read() == {"10.0.0.1:8000", "[fd00::1]:8000"}
    assert asked == [("vllm.svc", 8000)]
    assert dns.period == 5.0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(-2, "Name or service not known"), "[Errno -2] Name or service not known"),
        (UnicodeError("label too long"), "label too long"),
    ],
)
async def test_a_name_that_cannot_be_resolved(error: Exception, said: str) -> None:
    async def lookup(host: str, port: int) -> Iterable[str]:
        raise error

    dns = source(Endpoints(dns="vllm.svc", port=8000), lookup)
    assert await complaint(dns) == f"vllm.svc cannot be resolved: {said}"


async def test_a_name_without_an_address() -> None:
    async def lookup(host: str, port: int) -> Iterable[str]:
        return []

    dns = source(Endpoints(dns="vllm.svc", port=8000), lookup)
    assert await complaint(dns) == "vllm.svc has no address"


async def test_the_systems_resolver() -> None:
    assert set(await resolve("127.0.0.1", 8000)) == {"127.0.0.1"}


@pytest.mark.parametrize(
    "text",
    [
        '- "10.0.0.1:8000"\n- 10.0.0.2:8000\n',
        "endpoints:\n  - 10.0.0.1:8000\n  - 10.0.0.2:8000\n",
        json.dumps(["10.0.0.1:8000", "10.0.0.2:8000"]),
        json.dumps({"endpoints": ["10.0.0.1:8000", "10.0.0.2:8000"], "by": "us"}, indent="\t"),
        "\ufeff- 10.0.0.1:8000\n- 10.0.0.2:8000\n",
    ],
)
async def test_a_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(text)
    file = source(Endpoints(file=path))
    assert await file.read() == {"10.0.0.1:8000", "10.0.0.2:8000"}
    assert file.period == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "write a list of host:port, or endpoints: and it"),
        (b"endpoints: 10.0.0.1:8000", "write a list of host:port, or endpoints: and it"),
        (b"pods: []", "write a list of host:port, or endpoints: and it"),
        (b"7", "write a list of host:port, or endpoints: and it"),
        (b"[]", "endpoints: Tuple should have at least 1 item after validation, not 0"),
        (b"[7]", "endpoints[0]: Input should be a valid string"),
        (
            b"[a:1, b]",
            (
                "endpoints[1]: write host:port, the port from 1 to 65535, or unix:///absolute/path "
                "where a socket is accepted"
            ),
        ),
        (b"[a:1, a:1]", "endpoints: an endpoint is listed twice"),
        (b"[a:1", "neither YAML nor JSON: while parsing a flow sequence"),
        (b"\xff\xfe\xff", "neither YAML nor JSON: "),
        (b"[" * 100_000, "neither YAML nor JSON: "),
        (b"2001-99-99", "neither YAML nor JSON: month must be in 1..12"),
    ],
    ids=lambda value: repr(value)[:20] if isinstance(value, bytes) else "",
)
async def test_a_file_that_says_something_wrong(text: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_bytes(text)
    complained = await complaint(File(path))
    assert complained.startswith(f"{path}: {said}")
    assert len(complained) < 400


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    assert await complaint(File(path)) == f"{path}: No such file or directory"


async def test_what_is_no_plain_file_or_too_long(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "long").write_bytes(b"#" * (MAX_FILE + 1))
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "long"):
        assert await complaint(File(path)) == f"{path}: no plain file of up to 1 MiB"


async def test_a_file_is_read_again_when_it_was_replaced(tmp_path: Path) -> None:
    path, new = tmp_path / "pods.yaml", tmp_path / "new"
    path.write_text("- a:1")
    file = File(path)
    assert await file.read() == {"a:1"}
    new.write_text("- b:1")
    before = path.stat()
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)  # same size, same time: another inode
    assert await file.read() == {"b:1"}


async def test_a_file_is_not_read_again_while_nothing_changed(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text("- a:1")
    file = File(path)
    assert await file.read() == {"a:1"}
    before = path.stat()
    path.write_text("- b:1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await file.read() == {"a:1"}
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert await file.read() == {"b:1"}


async def test_a_bad_file_complains_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text("- a:1")
    file = File(path)
    await file.read()
    path.write_text("- a")
    assert "endpoints[0]" in await complaint(file)
    assert "endpoints[0]" in await complaint(file)
    path.write_text("- a:1\n- b:1")
    assert await file.read() == {"a:1", "b:1"}
