"""A ticket that is brought to several Tidegates at once counts at one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from extproc.sharing.claims import TicketClaims
from extproc.sharing.link import PREFIX

NUMBER = b"nine byte"


async def test_who_claims_second_has_lost(server: Any, linked: Any) -> None:
    link = await linked(server)
    one, other = TicketClaims(link, lambda: 100.0), TicketClaims(link, lambda: 100.0)
    lost: list[str] = []
    one.claim(NUMBER, 160.0, lambda: lost.append("one"))
    other.claim(NUMBER, 160.0, lambda: lost.append("other"))
    other.claim(b"anothers!", 160.0, lambda: lost.append("another"))
    for claims in (one, other):
        await working_off(claims)

    assert lost == ["other"]
    with server.client as client:
        assert 59_000 < client.pttl(f"{PREFIX}ticket:{NUMBER.hex()}") <= 60_000


async def test_without_redis_every_claim_stands(own_server: Any, linked: Any) -> None:
    link = await linked(own_server)
    claims = TicketClaims(link, lambda: 100.0)
    lost: list[str] = []
    claims.claim(NUMBER, 160.0, lambda: lost.append("late"))
    own_server.stop()
    await working_off(claims)
    assert not link.up
    claims.claim(NUMBER, 160.0, lambda: lost.append("down"))
    await working_off(claims)

    assert lost == []


async def working_off(claims: TicketClaims) -> None:
    """Run until the last answer is there."""
    task = asyncio.create_task(claims.run())
    await asyncio.wait_for(claims._queue.join(), 10)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
