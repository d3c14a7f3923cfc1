"""Nobody raises a class: not by header, key, spelling, doubling, or names that are ours or Envoy's.

JWT claims reach the processor as another filter's metadata; the standalone Envoy has no such
filter, so `tests/edge` proves that source and nothing here does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

Headers = list[tuple[str, str]]
BODY = b'{"model": "qwen", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}'
KEY, LOW_KEY = "sk-pay-1", "sk-ads-1"


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    file.write_text(f"{sha256(KEY)}: pay\n{sha256(LOW_KEY)}: marketing\n", encoding="utf-8")
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any, keys: Path) -> AsyncIterator[Any]:
    """Three sources at once: keys, a trusted header, then an untrusted one."""
    config = f"""
identity:
  sources:
    - api_key: {{file: {keys}}}
    - header: {{name: x-tenant-id, trusted: true}}
    - header: {{name: x-claimed-tenant}}
tenants:
  pay:       {{class: P0}}
  service:   {{class: P1}}
  marketing: {{class: P2}}
  anonymous: {{class: P1}}
tasks:
  order: {{class: P0}}
  bulk:  {{class: P2}}
"""
    async with opened(config, engines=1) as stand:
        yield stand


async def class_of(stand: Any, headers: Headers) -> str:
    """Send a call by hand, because clients refuse or tidy up what an attacker would send."""
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: e",
        "connection: close",
        f"content-length: {len(BODY)}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    reader, writer = await asyncio.open_connection(*stand.plan.envoy.split(":"))
    writer.write("\r\n".join([*lines, "", ""]).encode() + BODY)
    status, *answered = (await reader.read()).partition(b"\r\n\r\n")[0].decode().split("\r\n")
    writer.close()
    await writer.wait_closed()
    assert status == "HTTP/1.1 200 OK"
    (found,) = (line for line in answered if line.startswith("x-tidegate-class: "))
    return found.removeprefix("x-tidegate-class: ")


def tenant(*values: str) -> Headers:
    return [("x-tenant-id", value) for value in values]


def claimed(*values: str) -> Headers:
    return [("x-claimed-tenant", value) for value in values]


def bearer(*values: str) -> Headers:
    return [("authorization", f"Bearer {value}") for value in values]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param([], "P1", id="nobody"),
        pytest.param(tenant("pay"), "P0", id="trusted"),
        pytest.param([("X-TENANT-ID", "pay")], "P0", id="name in capitals"),
        pytest.param(tenant(" pay \t"), "P0", id="blanks around, no part of a value"),
        # Anonymous is P1 here: what is not known stays there, what is ambiguous goes to the lowest.
        pytest.param(tenant("PAY"), "P1", id="value in capitals"),
        pytest.param(tenant("Pay"), "P1", id="value in mixed case"),
        pytest.param(tenant("pay\u00a0"), "P1", id="odd blank"),
        pytest.param(tenant("pay;x"), "P1", id="parameter"),
        pytest.param(tenant('"pay"'), "P1", id="quoted"),
        pytest.param(tenant("p%61y"), "P1", id="escaped"),
        pytest.param(tenant(""), "P1", id="empty"),
        pytest.param([("x_tenant_id", "pay")], "P1", id="underscores"),
        pytest.param([("x-tenant-id-", "pay")], "P1", id="longer name"),
        pytest.param(tenant("marketing", "pay"), "P2", id="appended"),
        pytest.param(tenant("pay", "marketing"), "P2", id="prepended"),
        pytest.param(tenant("pay", "pay"), "P2", id="doubled"),
        pytest.param(tenant("pay,pay"), "P2", id="comma"),
        pytest.param(tenant("marketing, pay"), "P2", id="comma and blank"),
        pytest.param(tenant("pay,"), "P2", id="comma at the end"),
        pytest.param(tenant("", "pay"), "P2", id="empty and appended"),
        pytest.param(
            [("x-tenant-id", "marketing"), ("X-Tenant-ID", "pay")], "P2", id="doubled in two cases"
        ),
    ],
)
async def test_the_trusted_header(stand: Any, headers: Headers, expected: str) -> None:
    assert await class_of(stand, headers) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param(claimed("pay"), "P1", id="claims the highest, gets the default's"),
        pytest.param(claimed("service"), "P1", id="the default's own class"),
        pytest.param(claimed("marketing"), "P2", id="may lower itself"),
        pytest.param(claimed("pay", "pay"), "P2", id="doubled"),
        pytest.param(claimed("pay,pay"), "P2", id="comma"),
        pytest.param([*tenant("marketing"), *claimed("pay")], "P2", id="beside a trusted name"),
    ],
)
async def test_an_untrusted_header_never_raises(
    stand: Any, headers: Headers, expected: str
) -> None:
    assert await class_of(stand, headers) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param(bearer(KEY), "P0", id="right"),
        pytest.param([("authorization", f"bEARER  {KEY} ")], "P0", id="scheme in any case"),
        pytest.param([("x-api-key", KEY)], "P0", id="Anthropic's header"),
        pytest.param(bearer(LOW_KEY), "P2", id="another tenant's"),
        pytest.param(bearer("sk-pay-2"), "P1", id="wrong"),
        pytest.param(bearer(KEY.upper()), "P1", id="in capitals"),
        pytest.param(bearer(sha256(KEY)), "P1", id="the digest itself"),
        pytest.param(bearer(KEY, KEY), "P1", id="doubled"),
        pytest.param(bearer(LOW_KEY, KEY), "P1", id="appended"),
        pytest.param(bearer(f"{LOW_KEY},{KEY}"), "P1", id="comma"),
        pytest.param([("x-api-key", LOW_KEY), ("x-api-key", KEY)], "P1", id="x-api-key doubled"),
        pytest.param([("authorization", f"Basic {KEY}")], "P1", id="odd scheme"),
        pytest.param([("authorization", KEY)], "P1", id="no scheme"),
        pytest.param([("authorization", f"Bearer{KEY}")], "P1", id="no blank"),
        pytest.param([("authorization", f"Bearer\t{KEY}")], "P1", id="tabulator"),
        pytest.param([("authorization", "Bearer ")], "P1", id="no key"),
        pytest.param([("proxy-authorization", f"Bearer {KEY}")], "P1", id="another header"),
        pytest.param([*bearer(LOW_KEY), *tenant("pay")], "P2", id="a key outdoes a header"),
    ],
)
async def test_keys(stand: Any, headers: Headers, expected: str) -> None:
    assert await class_of(stand, headers) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("x-task-type", "bulk"), *tenant("pay")], "P2"),
        ([("x-task-type", "order"), *tenant("marketing")], "P2"),
        ([("x-task-type", "order"), ("x-task-type", "order")], "P1"),
        ([("x-task-type", "P0")], "P1"),
    ],
)
async def test_a_task_only_lowers(stand: Any, headers: Headers, expected: str) -> None:
    assert await class_of(stand, headers) == expected


OURS = {
    "x-tidegate-verdict": "admit",
    "x-tidegate-reason": "admitted",
    "x-tidegate-class": "P0",
    "X-Tidegate-Pool": "other",
    "x-tidegate-tenant": "pay",
    "x-tidegate-ticket": "abc",
}
ENVOYS = {
    "x-envoy-original-path": "/v1/models",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-upstream-rq-per-try-timeout-ms": "1",
    "x-envoy-upstream-alt-stat-name": "x",
    "x-envoy-retry-on": "5xx",
    "X-Envoy-Max-Retries": "9",
    "x-envoy-internal": "true",
    "x-envoy-force-trace": "true",
    "x-envoy-decorator-operation": "x",
    "x-envoy-original-dst-host": "127.0.0.1:1",
}


@pytest.mark.parametrize("spoofed", [OURS, ENVOYS], ids=["ours", "Envoy's"])
async def test_steering_headers_are_taken_away(stand: Any, spoofed: dict[str, str]) -> None:
    headers = [*spoofed.items(), *spoofed.items(), *tenant("marketing")]

    assert await class_of(stand, headers) == "P2"

    (received,) = await stand.received()
    assert not {name.lower() for name in spoofed} & received.headers.keys()


async def test_steering_headers_open_no_closed_class(stand: Any) -> None:
    await stand.show_usage(0.99)
    url = stand.url + "/v1/chat/completions"

    reply = await stand.http.post(
        url, content=BODY, headers=[*OURS.items(), *ENVOYS.items(), *tenant("marketing")]
    )

    assert reply.headers.get_list("x-tidegate-verdict") == ["shed"]
    assert reply.headers.get_list("x-tidegate-class") == ["P2"]
    assert await stand.received() == []


async def test_trailers_name_nobody(stand: Any) -> None:
    reader, writer = await asyncio.open_connection(*stand.plan.envoy.split(":"))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n"
        b"trailer: x-tenant-id\r\n\r\n%x\r\n%s\r\n0\r\nx-tenant-id: pay\r\n\r\n" % (len(BODY), BODY)
    )
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()

    assert b"x-tidegate-class: P1" in answer


@pytest.mark.parametrize("name", ["x-tenant-id", "authorization", "x-task-type", "accept-language"])
async def test_a_header_that_is_not_utf8_is_no_way_around(stand: Any, name: str) -> None:
    reply = await stand.http.post(
        stand.url + "/v1/chat/completions", content=BODY, headers=[(name.encode(), b"pay\xff")]
    )

    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "bad_request")
    assert await stand.received() == []


async def test_http2_is_no_way_around(stand: Any) -> None:
    async with httpx.AsyncClient(http1=False, http2=True) as client:
        for headers, expected in (
            (tenant("pay"), "P0"),
            (tenant("marketing", "pay"), "P2"),
            (tenant("pay", "pay"), "P2"),
            (claimed("pay"), "P1"),
            (bearer(KEY, KEY), "P1"),
        ):
            reply = await client.post(
                stand.url + "/v1/chat/completions", content=BODY, headers=headers
            )
            assert reply.headers["x-tidegate-class"] == expected, headers


@pytest.mark.parametrize("member", ["n", "best_of", "max_tokens", "min_tokens"])
async def test_a_number_beyond_all_use_is_no_way_around(stand: Any, member: str) -> None:
    body = b'{"%s": 1%s, "messages": []}' % (member.encode(), b"0" * 400)

    reply = await stand.post(body, x_tenant_id="marketing")

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, member)
    assert await stand.received() == []
    assert await stand.envoy("http.tidegate.ext_proc.tidegate.failure_mode_allowed") == 0
