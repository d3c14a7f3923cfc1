"""Prometheus' rules ask only for what exists, and tell people what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_DURATION = re.compile(r"\d+[smh]")


def _alerts(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for rule in rules if "alert" in rule]


def test_every_expression_asks_only_for_what_exists(
    rules: list[dict[str, Any]], problems_of: Callable[[str], list[str]]
) -> None:
    found = {rule.get("alert") or rule["record"]: problems_of(rule["expr"]) for rule in rules}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_a_rule_has_the_keys_of_its_kind(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        if "record" in rule:
            assert set(rule) == {"record", "expr"}
        else:
            assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
            assert _DURATION.fullmatch(rule.get("for", "0s"))


def test_names_are_unique(rules: list[dict[str, Any]]) -> None:
    names = [rule.get("alert") or rule["record"] for rule in rules]
    assert len(names) == len(set(names))


def test_a_recorded_name_says_which_labels_are_kept(rules: list[dict[str, Any]]) -> None:
    for rule in (rule for rule in rules if "record" in rule):
        kept: list[set[str]] = []

        def visit(node: promql.Expr, kept: list[set[str]] = kept) -> bool:
            if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
                kept.append(set(node.modifier.labels) - {"le"})
            return True

        promql.walk(promql.parse(rule["expr"]), visit)
        level = rule["record"].partition(":")[0]
        assert kept, rule["record"]
        assert all(labels == set(level.split("_")) for labels in kept), rule["record"]


def test_what_must_wake_somebody_is_there(rules: list[dict[str, Any]]) -> None:
    assert {rule["alert"]: rule["labels"]["severity"] for rule in _alerts(rules)} == {
        "TidegateDown": "critical",
        "TidegatePayingCallShed": "critical",
        "TidegateClassP1Closed": "critical",
        "TidegateClassP2ClosedForLong": "warning",
        "TidegateEndpointNotRead": "warning",
        "TidegateNoFreeRatio": "critical",
        "TidegateDecisionSlow": "warning",
        "TidegateEngineErrors": "critical",
        "TidegatePromptLengthRising": "warning",
        "TidegateOutputLengthRising": "warning",
        "TidegateBreakerTripped": "warning",
        "TidegateSubAgentCallsRising": "warning",
        "TidegateAgentsRefused": "warning",
        "TidegateLedgerUnreachable": "warning",
        "TidegateLedgerLags": "warning",
        "TidegateOutboxFills": "critical",
        "TidegateHoldsLeaked": "warning",
        "TidegateChargesLost": "critical",
        "TidegateRedisUnreachable": "warning",
        "TidegateConfigRefused": "warning",
        "TidegateFaults": "warning",
    }


def test_alerts_speak_english_and_chinese(rules: list[dict[str, Any]]) -> None:
    for alert in _alerts(rules):
        annotations = alert["annotations"]
        assert set(annotations) == {
            *("summary", "summary_zh", "description", "description_zh", "runbook")
        }
        for name, text in annotations.items():
            assert bool(_CHINESE.search(text)) == name.endswith("_zh"), (alert["alert"], name)


def test_templates_use_only_labels_that_the_alert_has(
    rules: list[dict[str, Any]], series: dict[str, frozenset[str]]
) -> None:
    every_label = frozenset().union(*series.values())
    for alert in _alerts(rules):
        for text in alert["annotations"].values():
            for label in re.findall(r"\$labels\.(\w+)", text):
                assert label in every_label
                # An aggregation keeps only what it names.
                grouped = re.search(r"\b(?:sum|max) by \(([^)]*)\)", alert["expr"])
                assert grouped is None or label in grouped[1].split(", "), alert["alert"]


def test_the_tests_of_the_alerts_cover_every_alert(
    directory: Path, rules: list[dict[str, Any]]
) -> None:
    cases = yaml.safe_load((directory / "prometheus" / "rules_test.yaml").read_text())
    firing = {
        test["alertname"]
        for case in cases["tests"]
        for test in case["alert_rule_test"]
        if test.get("exp_alerts")
    }
    assert firing == {alert["alert"] for alert in _alerts(rules)}


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yaml"),
        ("check", "rules", "rules.yaml"),
        ("test", "rules", "rules_test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(directory: Path, arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    done = subprocess.run(
        [promtool, *arguments],
        cwd=directory / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
