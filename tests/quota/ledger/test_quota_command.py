"""`tidegate quota` as an operator uses it."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from extproc.cli import app
from extproc.config import load
from extproc.core.outcomes import Outcome
from extproc.quota.database import open_database
from extproc.quota.ledger import Ledger
from extproc.quota.plans import quota_plans
from extproc.quota.ports import Settlement

CONFIG = """\
plans:
  free: {{quota: {{tokens: 1000, time_zone: Asia/Shanghai}}}}
tenants:
  pay: {{class: P0, plan: free, language: en}}
  zhang: {{class: P1, plan: free}}
  service: {{class: P1}}
state: {{database: "{url}"}}
"""

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def config(database_url: str, tmp_path: Path) -> Path:
    file = tmp_path / "tidegate.yaml"
    file.write_text(CONFIG.format(url=database_url), encoding="utf-8")
    return file


@pytest.fixture
def command(config: Path) -> Command:
    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["quota", *words, "--config", str(config)])
        return result.exit_code, result.output

    return run


def charge(config: Path, tenant: str, tokens: int, outcome: Outcome = Outcome.COMPLETED) -> None:
    settings = load(config)
    engine = open_database(settings.state.database)
    ledger = Ledger(engine, quota_plans(settings), time.time)
    ledger.open("test")
    ident = f"{tenant}-{tokens}"
    ledger.apply(
        [
            Settlement(
                ident,
                tenant,
                "free",
                outcome,
                tokens,
                outcome is not Outcome.COMPLETED,
                time.time(),
            )
        ]
    )
    ledger.close()


def test_show_grant_adjust(config: Path, command: Command) -> None:
    charge(config, "pay", 70)
    code, output = command("show", "pay")
    assert code == 0
    lines = output.splitlines()
    assert lines[:2] == ["Tenant: pay", "Plan: free"]
    assert lines[2].endswith("00:00:00+08:00 (Asia/Shanghai)")
    assert lines[3:] == ["Total: 1,000", "Used: 70", "Held for calls under way: 0", "Left: 930"]
    for _ in range(2):
        code, output = command("grant", "pay", "500", "--reason", "sorry", "--id", "ticket-7")
        assert (code, output.splitlines()[-1]) == (0, "Left: 1,430")
    assert output.startswith("ticket-7 has been done before; nothing changes\n")
    code, output = command("adjust", "pay", "-30", "--reason", "counted twice")
    assert (code, output.splitlines()[-1]) == (0, "Left: 1,400")


def test_statement_in_two_languages(config: Path, command: Command) -> None:
    charge(config, "pay", 70)
    charge(config, "pay", 5, Outcome.CLIENT_GONE)
    code, output = command("statement", "pay", "--format", "json")
    assert code == 0
    assert [(each["exchange"], each["tokens"], each["left"], each["text"]) for each in map(json.loads, output.splitlines())] == [
        ("", 1000, 1000, "Period begins, quota of plan free"),
        ("pay-70", -70, 930, "Call pay-70: completed, usage as reported"),
        ("pay-5", -5, 925, "Call pay-5: client left, prompt and what was generated until then (estimated)"),
    ]  # fmt: skip
    code, output = command("statement", "pay", "--format", "csv", "--language", "zh")
    assert [each["text"] for each in csv.DictReader(io.StringIO(output))] == [
        "周期开始，套餐 free 额度",
        "请求 pay-70：已完成，按上报用量计费",
        "请求 pay-5：客户端断开，按提示词与已生成部分计费（估算）",
    ]
    code, output = command("statement", "pay")
    assert code == 0
    assert "cost nothing and are not listed" in " ".join(output.split())
    code, output = command("statement", "zhang")  # Chinese, the product's default
    assert output.startswith("租户: zhang\n")


def test_the_statement_of_a_period_in_which_nothing_happened(
    config: Path, command: Command
) -> None:
    charge(config, "pay", 70)
    assert command("statement", "pay", "--at", "2020-02-02", "--format", "json") == (0, "")


def test_compensate(config: Path, command: Command) -> None:
    charge(config, "pay", 70)
    charge(config, "zhang", 900)
    code, output = command("compensate", "--campaign", "618")
    assert code == 0
    assert "dry run, nothing has changed" in output
    assert command("show", "pay")[1].splitlines()[-1] == "Left: 930"
    for _ in range(2):
        code, output = command("compensate", "--campaign", "618", "--apply")
        assert code == 0
        cells = [
            [cell.strip() for cell in line.split("│")[1:4]]
            for line in output.splitlines()
            if "│" in line
        ]
        assert cells == [
            ["use made 0", "1", "70"],
            ["bonus added", "1", "250"],
            ["nothing to do", "0", "0"],
        ]
    assert command("show", "pay")[1].splitlines()[-1] == "Left: 1,000"
    assert command("show", "zhang", "--language", "en")[1].splitlines()[-1] == "Left: 350"
    code, output = command("compensate", "--campaign", "618", "--apply", "--bonus", "0.5")
    assert (code, "give it another id" in output) == (1, True)


def test_rebuild_and_migrate(config: Path, command: Command) -> None:
    charge(config, "pay", 70)
    assert command("rebuild") == (0, "all balances were right\n")
    code, output = command("migrate")
    assert (code, output.endswith("are up to date\n")) == (0, True)


def test_a_tenant_that_has_no_quota(command: Command) -> None:
    assert command("show", "service") == (1, "service has no plan with a quota\n")


def test_a_configuration_that_cannot_be_used(config: Path, command: Command) -> None:
    config.write_text("plans: 7\n")
    code, output = command("show", "pay")
    assert code == 2
    assert output.startswith(f"{config} cannot be used:\n  line 1: plans")


@pytest.mark.parametrize(
    "url", ["sqlite:////no/such/folder/ledger.db", "postgresql://tidegate:secret@127.0.0.1:9/x"]
)
def test_a_database_that_does_not_answer(tmp_path: Path, url: str) -> None:
    file = tmp_path / "tidegate.yaml"
    file.write_text(CONFIG.format(url=url), encoding="utf-8")
    result: Any = CliRunner().invoke(app, ["quota", "show", "pay", "--config", str(file)])
    assert result.exit_code == 1
    assert "does not do it" in result.output
    assert "secret" not in result.output
