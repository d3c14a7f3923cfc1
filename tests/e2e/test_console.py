"""The console in a real Chromium, before a Tidegate that serves traffic through Envoy."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from extproc.stand.children import child

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

MORE = """
agents: {}
plans: {business: {quota: {tokens: 100000}}}
tenants:
  pay:       {class: P0}
  service:   {class: P1, plan: business}
  marketing: {class: P2}
  anonymous: {class: P2}
"""
CHAT = {"model": "qwen", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
# No network but loopback, no GPU, and root in containers.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
OPENS = """url => new Promise(told => {
    const socket = new WebSocket(url);
    socket.onopen = () => { told("open"); socket.close(); };
    socket.onerror = () => told("refused");
})"""
POSTS = """url => fetch(url, {method: "POST", credentials: "include", body: "{}",
    headers: {"content-type": "application/json"}}).then(() => "answered", () => "refused")"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> AsyncIterator[Any]:
    """A stand where a tenant has a quota."""
    async with opened(MORE) as stand:
        yield stand


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    """A browser for the whole module."""
    found = shutil.which("chromium")
    if found is None:
        told = "there is no chromium: apt-get install chromium"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(shared: Any) -> AsyncIterator[str]:
    """The console's address."""
    plan = shared.plan
    async with child("console", plan.console_command(), plan.directory):
        url = f"http://{plan.console}"

        async def answers() -> bool:
            try:
                return bool((await shared.http.get(f"{url}/healthz")).is_success)
            except httpx.TransportError:
                return False

        await shared.eventually(answers, "a console", seconds=30)
        yield url


@asynccontextmanager
async def opened_page(
    chromium: Browser, url: str, token: str = "", *, width: int = 1280, locale: str = "en-US"
) -> AsyncIterator[Page]:
    """Open the console in a browser of its own, and log in where a token is given."""
    context = await chromium.new_context(
        viewport={"width": width, "height": 800}, locale=locale, reduced_motion="reduce"
    )
    page = await context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda told: troubles.append(told.text) if "Policy" in told.text else None)
    await page.goto(url)
    if token:
        await page.fill("input[name=token]", token)
        await page.click("form button.act")
        await page.wait_for_selector("#mode")
    yield page
    assert troubles == [], "no script fails, and none is stopped by the policy"
    await context.close()


async def switch(page: Page, mode: str, reason: str) -> None:
    """Switch the mode as an operator does: choose, say why, see what it means, confirm."""
    await page.click("#switch")
    await page.check(f"#mode-form input[value={mode}]")
    await page.fill("#mode-form textarea", reason)
    await page.click("#mode-form button.act")
    await page.click("#mode-confirm button.danger")


async def confirm(page: Page, reason: str) -> None:
    """Say why in the dialog, and confirm."""
    await page.fill("dialog textarea", reason)
    await page.click("dialog button.danger")


async def reason_of(stand: Any, tenant: str) -> str:
    reply = await stand.post(CHAT, x_tenant_id=tenant)
    return str(reply.headers["x-tidegate-reason"])


async def turned_away_at(stand: Any) -> float:
    """Call as P2 until that is turned away by the mode; return when it was, in Unix time."""

    async def is_turned_away() -> bool:
        return await reason_of(stand, "marketing") == "mode_transactions_only"

    await stand.eventually(is_turned_away, "P2 is turned away", seconds=20)
    return time.time()


async def test_the_switch_closes_p2_at_once_and_the_wallboard_shows_it(
    stand: Any, chromium: Browser, console: str
) -> None:
    async with opened_page(chromium, console, stand.plan.token) as page:
        p2 = page.locator("[data-class=P2]")
        await expect(page.locator("#mode")).to_have_text("Normal")
        await expect(p2).to_have_attribute("data-gate", "open")
        assert await reason_of(stand, "marketing") == "admitted"

        _, turned_away = await asyncio.gather(
            switch(page, "TRANSACTIONS_ONLY", "a <b>peak</b>"), turned_away_at(stand)
        )

        await expect(page.locator("#mode")).to_have_text("Transactions only")
        await expect(page.locator(".band .set")).to_contain_text("stand")
        await expect(page.locator(".band .set")).to_contain_text("a <b>peak</b>")
        await expect(p2).to_have_attribute("data-gate", "closedmode")
        await expect(p2.locator("[data-reason=mode_transactions_only]")).to_contain_text("1")
        assert await reason_of(stand, "pay") == "admitted"
        me = "async () => (await fetch('/api/ModeService/GetMode', {method: 'POST', body: '{}',"
        me += " headers: {'content-type': 'application/json'}})).json()"
        switched = await page.evaluate(f"async () => Date.parse((await ({me})()).at) / 1000")
        assert turned_away - switched < 1

        await switch(page, "NORMAL", "over")
        await expect(page.locator("#mode")).to_have_text("Normal")
        await expect(p2).to_have_attribute("data-gate", "open")
        assert await reason_of(stand, "marketing") == "admitted"

        await page.click("nav a[href='#/audit']")
        rows = page.locator("tbody tr")
        await expect(rows.nth(0)).to_contain_text("over")
        await expect(rows.nth(1)).to_contain_text("normal → transactions_only")


async def test_a_token_that_is_tried_is_written_nowhere(stand: Any, console: str) -> None:
    """The stand looks for this canary in the console's log as well, when it ends."""
    for path, body in (
        ("login", {"token": "sk-canary-0c9b4e"}),
        ("logout", {"a": "canary-0c9b4e"}),
    ):
        reply = await stand.http.post(
            f"{console}/api/{path}", json=body, headers={"origin": console}
        )
        assert reply.status_code in (200, 401)
    log = (stand.plan.directory / "console.log").read_text(encoding="utf-8")
    assert "a wrong token" in log


async def test_decisions_are_filtered_and_explained(
    stand: Any, chromium: Browser, console: str
) -> None:
    await stand.show_usage(0.9)
    assert await reason_of(stand, "marketing") == "kv_watermark"
    assert await reason_of(stand, "pay") == "admitted"
    async with opened_page(chromium, console, stand.plan.token) as page:
        await page.click("nav a[href='#/decisions']")
        rows = page.locator("tbody tr")
        await expect(rows.first).to_contain_text("pay")
        await page.select_option("select[name=service_class]", "P2")
        await expect(rows.first).to_contain_text("KV watermark")
        await expect(page.locator(".why")).to_contain_text("Bottleneck")

        await rows.first.locator("button").click()
        await expect(page.locator("#explanation .told")).to_contain_text("KV")
        await expect(page.locator("#explanation li.refused")).to_have_count(1)
        await page.click("#explanation button")

        await page.select_option("#trial select", "P2")
        await page.fill("#trial input", "5")
        await page.click("#trial button")
        await expect(page.locator("#trial .result")).to_contain_text("P2 closing under 5%: 1 more")

        await page.click("text=Live")
        await expect(page.locator("button[aria-pressed=true]")).to_be_visible()
        before = await rows.count()
        await reason_of(stand, "marketing")
        await expect(rows).to_have_count(before + 1)


@pytest.mark.parametrize(
    ("width", "locale", "title", "counted"),
    [
        (1280, "en-US", "Run trip-1280", "marketing, 5 calls: 1 merged, 0 turned away."),
        (390, "zh-CN", "运行 trip-390", "marketing，共 5 次调用：合并 1，拒绝 0。"),
    ],
    ids=["desk", "phone"],
)
async def test_a_run_of_agents_is_shown_as_a_tree(
    stand: Any, chromium: Browser, console: str, width: int, locale: str, title: str, counted: str
) -> None:
    run = f"trip-{width}"

    async def ask(task: str, parent: str, *, tenant: str = "marketing", tokens: int = 4) -> str:
        above = {"x_agent_parent_id": parent} if parent else {}
        named = {"x_tenant_id": tenant, "x_agent_run_id": run, "x_agent_task_id": task}
        reply = await stand.post(CHAT | {"max_tokens": tokens}, **named, **above)
        return str(reply.headers["x-tidegate-verdict"])

    for task, parent in (("plan", ""), ("search", "plan"), ("read", "search")):
        assert await ask(task, parent) == "admit"
    verdicts = await asyncio.gather(*(ask("book", "plan", tokens=200) for _ in range(2)))
    assert sorted(verdicts) == ["admit", "merge"]
    assert (
        await ask("plan", "", tenant="pay") == "admit"
    )  # a run of another, by chance of that name

    async with opened_page(chromium, console, stand.plan.token, width=width, locale=locale) as page:
        await page.click("nav a[href='#/decisions']")
        await page.locator("tr:has-text('marketing') button.run").first.click()
        if folder := os.environ.get("TIDEGATE_SCREENSHOTS"):
            await page.locator("#run").wait_for()
            await page.screenshot(path=f"{folder}/run-{width}.png", full_page=True)

        await expect(page.locator("#run h1")).to_contain_text(title)
        await expect(page.locator("#run > .hint")).to_have_text(counted)
        await expect(page.locator("#run .tree > li > .task")).to_have_text("plan")
        await expect(page.locator("#run .tree > li > ul > li > .task")).to_have_text(
            ["search", "book"]
        )
        await expect(page.locator("#run ul ul ul .task")).to_have_text("read")
        await expect(page.locator("#run li.call.admit")).to_have_count(4)
        await expect(page.locator("#run li.call.merge")).to_have_count(1)
        await page.locator("#run li.call.merge button").click()
        await expect(page.locator("#explanation .told")).not_to_be_empty()
        await page.click("#explanation button.act")
        await page.click("#run h1 button")
        await expect(page.locator("#run")).to_have_count(0)


async def test_thresholds_are_changed_with_a_reason_and_refused_where_they_may_not_be(
    stand: Any, chromium: Browser, console: str
) -> None:
    async with opened_page(chromium, console, stand.plan.token) as page:
        await page.click("nav a[href='#/thresholds']")
        mark = page.locator("input[name='classes/P2/close']")
        await expect(mark).to_have_value("0.15")

        async def change(to: str) -> None:
            await mark.fill(to)
            await mark.blur()
            await page.click("#thresholds button.act")
            await expect(page.locator("dialog li")).to_contain_text("15% →")
            await confirm(page, "earlier")

        await change("0.3")  # over the mark at which it opens again
        await expect(page.locator("dialog [role=alert]")).to_contain_text("free_watermark")
        await page.click("dialog button.quiet")
        await expect(
            page.locator("dialog")
        ).to_be_hidden()  # what is behind it cannot be typed into before
        await change("0.18")
        await expect(page.locator("td.differs input")).to_have_value("0.18")
        await page.click("text=Back to the configuration file")
        await confirm(page, "tried")
        await expect(mark).to_have_value("0.15")


async def test_quotas_are_shown_with_their_statement_adjusted_and_compensated(
    stand: Any, chromium: Browser, console: str
) -> None:
    assert await reason_of(stand, "service") == "admitted"
    await stand.settled()
    async with opened_page(chromium, console, stand.plan.token) as page:
        await page.click("nav a[href='#/tenants']")
        await page.click("tbody tr:has-text('business') a")
        rows = page.locator("#statement tbody tr")

        async def charged() -> bool:
            await page.reload()
            await expect(rows.last).to_contain_text("period begins")
            return await rows.count() == 2

        await stand.eventually(charged, "the charge is in the ledger")
        await expect(rows.first).to_contain_text("charge")
        await expect(rows.first).to_contain_text("completed")

        await page.click("#adjust")
        await page.fill("dialog input[name=tokens]", "500")
        await confirm(page, "goodwill")
        await expect(rows.first).to_contain_text("+500")
        await expect(rows.first).to_contain_text("goodwill")

        await page.click("nav a[href='#/compensation']")
        await page.fill("#campaign input[name=id]", "outage-1")
        await page.click("#dry-run")
        await expect(page.locator("#outlook tbody tr")).to_contain_text("service")
        await expect(page.locator("#outlook tbody tr")).to_contain_text("used becomes 0")
        await page.click("#apply")
        await confirm(page, "the outage")
        await expect(page.locator("#progress h1")).to_have_text("Compensated 100%")
        await expect(page.locator("tbody tr")).to_contain_text("outage-1")

        await page.click("nav a[href='#/audit']")
        await expect(page.locator("tbody tr").first).to_contain_text("the outage")


async def test_a_wrong_token_is_refused_and_a_viewer_cannot_switch(
    stand: Any, chromium: Browser, console: str
) -> None:
    async with opened_page(chromium, console) as page:
        await page.fill("input[name=token]", "guess")
        await page.click("form button.act")
        await expect(page.locator("[role=alert]")).to_have_text("Nobody has this token.")
    async with opened_page(chromium, console, stand.plan.console_token) as page:
        await expect(page.locator(".me")).to_have_text("console viewer")
        await expect(page.locator("#switch")).to_be_disabled()
        await page.click("text=Log out")
        await expect(page.locator("input[name=token]")).to_be_visible()


async def test_a_page_of_another_origin_gets_nothing_with_the_cookie_of_who_is_logged_in(
    stand: Any, chromium: Browser, console: str
) -> None:
    live = console.replace("http", "ws", 1) + "/live"
    async with opened_page(chromium, console, stand.plan.token) as page:
        assert await page.evaluate(OPENS, live) == "open"
        # Another port of the same host: the same site, so the browser sends the cookie along.
        await page.goto(f"http://{stand.plan.engines[0]}/health")
        assert await page.evaluate(OPENS, live) == "refused"
        assert await page.evaluate(POSTS, f"{console}/api/logout") == "refused"
        await page.goto(console)
        await page.wait_for_selector("#mode")


@pytest.mark.parametrize(("locale", "mode"), [("zh-CN", "正常"), ("en-GB", "Normal")])
async def test_it_fits_a_wall_a_desk_and_a_phone_in_the_browsers_language(
    stand: Any, chromium: Browser, console: str, locale: str, mode: str
) -> None:
    token = stand.plan.token
    async with opened_page(chromium, console, token, locale=locale) as page:
        await expect(page.locator("#mode")).to_have_text(mode)
        for width in (1920, 1280, 390):
            await page.set_viewport_size({"width": width, "height": 1080})
            for place in ("board", "decisions", "thresholds", "tenants", "compensation", "audit"):
                await page.click(f"nav a[href='#/{place}']")
                await expect(page.locator(f"main.{place}")).to_be_visible()
                wide = await page.evaluate("document.documentElement.scrollWidth")
                assert wide == width, f"{place} at {width}"
