"""The console as a browser meets it, and as other sites do."""

from __future__ import annotations

import asyncio
import json
from http.cookies import SimpleCookie
from typing import Any

import aiohttp
import grpc
import pytest
from yarl import URL

from extproc.console.server import COOKIE

TRANSACTIONS = {"mode": "MODE_TRANSACTIONS_ONLY", "reason": "peak"}
FOREIGN = ["https://evil.example", "http://127.0.0.1:1", "http://localhost:1", "null", ""]


async def mode(browser: Any) -> str:
    told = await (await browser.post("/api/ModeService/GetMode")).json()
    return str(told["mode"])


class TestLoggingIn:
    @pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
    async def test_with_a_token_of_the_control_api(self, browser: Any, role: str) -> None:
        assert await (await browser.get("/api/me")).json() is None
        reply = await browser.log_in(role)
        assert (reply.status, await reply.json()) == (200, {"who": f"the-{role}", "role": role})
        assert await (await browser.get("/api/me")).json() == {"who": f"the-{role}", "role": role}

    async def test_the_cookie_is_for_our_pages_alone_and_is_not_the_token(
        self, browser: Any
    ) -> None:
        cookie = SimpleCookie((await browser.log_in("operator")).headers["set-cookie"])[COOKIE]
        assert cookie["httponly"] is True
        assert cookie["samesite"] == "Strict"
        assert cookie["path"] == "/"
        assert "operator" not in cookie.value
        assert len(cookie.value) == 43

    async def test_behind_a_proxy_with_tls_the_cookie_never_leaves_it(self, browser: Any) -> None:
        proxy = {"host": "board.example", "origin": "https://board.example"}
        reply = await browser.post("/api/login", {"token": "viewer"}, **proxy)
        assert SimpleCookie(reply.headers["set-cookie"])[COOKIE]["secure"] is True
        mixed = {"host": "board.example", "origin": browser.origin}
        assert (await browser.post("/api/login", {"token": "viewer"}, **mixed)).status == 403

    @pytest.mark.parametrize("token", ["", "guess", "pod", "x" * 2000, "a\nb", "密钥", 5, None])
    async def test_nobody_else_gets_in(self, browser: Any, token: object) -> None:
        reply = await browser.log_in(token)
        assert reply.status == 401
        assert (await reply.json())["error"] == "UNAUTHENTICATED"
        assert "set-cookie" not in reply.headers

    async def test_guessing_is_slow(self, browser: Any) -> None:
        statuses = [(await browser.log_in("guess")).status for _ in range(6)]
        assert statuses == [401, 401, 401, 401, 401, 429]
        refused = await browser.log_in("viewer")
        assert (refused.status, refused.headers["retry-after"]) == (429, "7")
        browser.clock.now += 60
        assert (await browser.log_in("viewer")).status == 200

    async def test_nobody_has_failed_where_tidegate_cannot_be_asked(
        self, browser: Any, failing: Any
    ) -> None:
        failing("caller", grpc.StatusCode.UNAVAILABLE)
        replies = [await browser.log_in("viewer") for _ in range(8)]
        assert {each.status for each in replies} == {503}
        assert (await replies[0].json())["error"] == "UNAVAILABLE"

    async def test_a_new_one_ends_the_old_one_and_leaving_ends_it(self, browser: Any) -> None:
        await browser.log_in("viewer")
        jar = browser.http.cookie_jar
        old = jar.filter_cookies(URL(browser.origin))[COOKIE].value
        await browser.log_in("operator")
        assert (await browser.post("/api/logout")).status == 200
        assert await (await browser.get("/api/me")).json() is None
        for cookie in (old, "guess"):
            jar.update_cookies({COOKIE: cookie})
            assert (await browser.post("/api/ModeService/GetMode")).status == 401


class TestOtherSites:
    @pytest.mark.parametrize("origin", FOREIGN)
    async def test_nothing_is_changed_from_another_page(self, browser: Any, origin: str) -> None:
        await browser.log_in("operator")
        for path in ("/api/login", "/api/logout", "/api/ModeService/SetMode"):
            assert (await browser.post(path, TRANSACTIONS, origin=origin)).status == 403
        assert await mode(browser) == "MODE_NORMAL"

    async def test_nor_without_an_origin_nor_by_a_form(self, browser: Any) -> None:
        await browser.log_in("operator")
        url = browser.origin + "/api/ModeService/SetMode"
        async with browser.http.post(url, json=TRANSACTIONS) as reply:
            assert reply.status == 403
        ours = {"origin": browser.origin}
        for form in (
            {"data": TRANSACTIONS},
            {"data": json.dumps(TRANSACTIONS), "headers": {"content-type": "text/plain"}},
        ):
            headers = ours | form.get("headers", {})  # type: ignore[operator]
            async with browser.http.post(url, data=form["data"], headers=headers) as reply:
                assert reply.status == 415
        assert await mode(browser) == "MODE_NORMAL"

    @pytest.mark.parametrize("origin", FOREIGN)
    async def test_no_websocket_from_another_page(self, browser: Any, origin: str) -> None:
        await browser.log_in("viewer")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browser.live(origin=origin)
        assert refused.value.status == 403

    async def test_no_websocket_without_a_session(self, browser: Any) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browser.live()
        assert refused.value.status == 401

    async def test_a_name_of_theirs_that_leads_to_us_is_not_answered(self, browser: Any) -> None:
        for path in ("/", "/healthz", "/static/main.js", "/live", "/api/me"):
            assert (await browser.get(path, host="evil.example")).status == 421

    @pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/me", "/nowhere"])
    async def test_pages_run_our_scripts_only_and_in_no_frame(
        self, browser: Any, path: str
    ) -> None:
        headers = (await browser.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"

    async def test_the_page_holds_no_data_and_no_inline_code(self, browser: Any) -> None:
        page = await (await browser.get("/", **{"accept-language": "zh-CN"})).text()
        assert '<html lang="zh">' in page
        assert "<style" not in page
        assert page.count("<script") == page.count('<script type="module" src="/static/') == 1


class TestCalling:
    async def test_the_control_api_judges_who_may(self, browser: Any) -> None:
        await browser.log_in("viewer")
        refused = await browser.post("/api/ModeService/SetMode", TRANSACTIONS)
        assert (refused.status, (await refused.json())["error"]) == (403, "PERMISSION_DENIED")
        assert await mode(browser) == "MODE_NORMAL"

        await browser.log_in("operator")
        done = await (await browser.post("/api/ModeService/SetMode", TRANSACTIONS)).json()
        assert done["after"]["mode"] == "MODE_TRANSACTIONS_ONLY"
        assert done["after"]["by"] == "the-operator"
        audit = await (await browser.post("/api/AuditService/ListAudit")).json()
        (entry,) = audit["entries"]
        assert (entry["who"], entry["reason"]) == ("the-operator", "peak")

    @pytest.mark.parametrize(
        ("path", "body", "status"),
        [
            ("ModeService/SetMode", {"mode": "MODE_PROTECT"}, 400),
            ("ModeService/SetMode", {"mood": "MODE_PROTECT"}, 400),
            ("ModeService/SetMode", [1], 400),
            ("ModeService/SetMood", {}, 404),
            ("LoadReportService/ReportLoad", {}, 404),
            ("ModeService/SetMode", {"reason": "x" * 70000}, 413),
        ],
    )
    async def test_what_is_wrong_is_said(
        self, browser: Any, path: str, body: object, status: int
    ) -> None:
        await browser.log_in("admin")
        assert (await browser.post(f"/api/{path}", body)).status == status

    async def test_a_stream_comes_line_by_line(self, browser: Any) -> None:
        await browser.log_in("viewer")
        url = f"{browser.origin}/api/DecisionService/WatchDecisions"
        ours = {"origin": browser.origin}
        async with asyncio.timeout(10), browser.http.post(url, json={}, headers=ours) as reply:
            assert reply.content_type == "application/x-ndjson"
            assert json.loads(await reply.content.readline()) == {"decisions": [], "left_out": 0}

    async def test_a_stream_that_is_refused_is_a_plain_error(self, browser: Any) -> None:
        await browser.log_in("viewer")
        wrong = {"limit": 100_000}
        assert (await browser.post("/api/DecisionService/WatchDecisions", wrong)).status == 400

    async def test_a_stream_that_breaks_says_so_in_its_last_line(
        self, browser: Any, failing: Any
    ) -> None:
        await browser.log_in("viewer")
        failing("stream", grpc.StatusCode.UNAVAILABLE)
        reply = await browser.post("/api/DecisionService/WatchDecisions")
        assert [json.loads(line) for line in (await reply.text()).splitlines()] == [
            {"decisions": [], "left_out": 7},
            {"error": "UNAVAILABLE", "detail": "as the test wants"},
        ]

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            (grpc.StatusCode.UNAUTHENTICATED, 401),
            (grpc.StatusCode.NOT_FOUND, 404),
            (grpc.StatusCode.ABORTED, 409),
            (grpc.StatusCode.UNIMPLEMENTED, 501),
            (grpc.StatusCode.DEADLINE_EXCEEDED, 504),
            (grpc.StatusCode.INTERNAL, 502),
        ],
    )
    async def test_refusals_have_http_s_own_status(
        self, browser: Any, failing: Any, code: grpc.StatusCode, status: int
    ) -> None:
        await browser.log_in("viewer")
        failing("call", code)
        assert (await browser.post("/api/ModeService/GetMode")).status == status
        me = await (await browser.get("/api/me")).json()
        assert (me is None) == (status == 401), (
            "a token that is not known any more ends the session"
        )


class TestLive:
    async def test_it_brings_what_was_then_what_is(self, browser: Any) -> None:
        await browser.log_in("operator")
        async with browser.live() as socket, asyncio.timeout(10):
            while (first := await socket.receive_json())["state"] is None:
                continue
            assert first["state"]["mode"]["mode"] == "MODE_NORMAL"
            assert first["problem"] == ""
            assert list(first["points"]) == ["qwen"]

            await browser.post("/api/ModeService/SetMode", TRANSACTIONS)
            while (await socket.receive_json())["state"]["mode"]["mode"] == "MODE_NORMAL":
                continue

    async def test_it_ends_with_the_session(self, browser: Any) -> None:
        await browser.log_in("operator")
        async with browser.live() as socket, asyncio.timeout(10):
            await socket.receive_json()
            await browser.post("/api/logout")
            while (message := await socket.receive()).type is not aiohttp.WSMsgType.CLOSE:
                continue
            assert message.data == 4401

    @pytest.mark.parametrize(
        ("code", "ends"),
        [(grpc.StatusCode.UNAUTHENTICATED, True), (grpc.StatusCode.UNAVAILABLE, False)],
    )
    async def test_it_ends_where_the_token_is_taken_back(
        self, browser: Any, failing: Any, code: grpc.StatusCode, ends: bool
    ) -> None:
        await browser.log_in("viewer")
        failing("caller", code)
        async with browser.live() as socket, asyncio.timeout(10):
            browser.clock.now += 61
            kinds = [(await socket.receive()).type for _ in range(3)]
        assert (aiohttp.WSMsgType.CLOSE in kinds) == ends

    async def test_it_is_closed_when_the_console_stops(self, browser: Any) -> None:
        await browser.log_in("viewer")
        async with browser.live() as socket, asyncio.timeout(10):
            await browser.stop()
            while (message := await socket.receive()).type is not aiohttp.WSMsgType.CLOSE:
                continue
            assert message.data == aiohttp.WSCloseCode.GOING_AWAY


async def test_it_is_alive(browser: Any) -> None:
    assert (await browser.get("/healthz")).status == 200
