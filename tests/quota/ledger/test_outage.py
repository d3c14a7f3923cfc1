"""A database that hangs, through the real Envoy: callers notice nothing, and nothing is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.quota.ledger.outage import measure

pytestmark = pytest.mark.e2e


async def test_while_the_database_hangs_calls_go_on_and_are_charged_later(postgres: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-") as directory:
        report = await measure(postgres, Path(directory), seconds=3, rate=50)
    for phase in (report.before, report.during):
        assert phase.answered == phase.sent > 50
    answered = 1 + report.before.answered + report.during.answered
    assert report.backlog >= 2 * report.during.answered - 100
    assert report.charges == answered
    assert report.tokens == answered * report.usage
    assert report.pending == 0
