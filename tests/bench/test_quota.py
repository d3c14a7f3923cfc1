"""The bench of quotas, with few subscriptions: everybody is met."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench import quota


def test_a_campaign_meets_all(tmp_path: Path) -> None:
    assert quota.compensated(f"sqlite:///{tmp_path / 'ledger.db'}", 30) > 0


def test_every_hold_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "HOLDS", 50)
    monkeypatch.setattr(quota, "ACCOUNTS", 5)
    assert len(quota.holds()) == 50
    assert all(seconds > 0 for seconds in quota.holds())


def test_it_says_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "HOLDS", 50)
    app = typer.Typer()
    app.command()(quota.main)
    told = CliRunner().invoke(app, ["--subscriptions", "20"])
    assert told.exit_code == 0
    assert told.output.startswith("take, of 1,000 accounts: p50 ")
    assert "campaign for 20 subscriptions: " in told.output
