"""The Grafana dashboard and its provisioning."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.config import load

PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def dashboard(directory: Path) -> dict[str, Any]:
    text = (directory / "grafana" / "dashboards" / "tidegate.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


@pytest.fixture(scope="module")
def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_every_query_asks_only_for_what_exists(
    panels: list[dict[str, Any]], problems_of: Callable[[str], list[str]]
) -> None:
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        plain = query.replace("$__rate_interval", "1m").replace("$pool", ".*")
        assert "$" not in plain
        assert problems_of(plain) == []


def test_rows_are_in_the_order_of_importance(dashboard: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert [title.partition(" · ")[0] for title in titles] == [
        "Is the paying path alive?",
        "Admitted and shed",
        "Free ratio and closed classes",
        "In flight",
        "Endpoints",
        "Decision time",
        "Outcomes",
        "Tokens",
        "Queue",
        "Tenants",
        "Output breaker",
        "Agents",
        "Quota and ledger",
    ]


def test_every_panel_asks_the_chosen_data_source(panels: list[dict[str, Any]]) -> None:
    for panel in panels:
        assert panel["datasource"] == PROMETHEUS
        assert all(target["datasource"] == PROMETHEUS for target in panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))


def test_ids_are_unique_and_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    for place in places:
        assert place["x"] + place["w"] <= 24
    for one, other in itertools.combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y


def test_titles_and_descriptions_are_in_both_languages(
    dashboard: dict[str, Any], panels: list[dict[str, Any]]
) -> None:
    texts = [panel["title"] for panel in dashboard["panels"] if panel["title"] != "Tokens · Token"]
    texts += [panel["description"] for panel in panels]
    texts += [variable["label"] for variable in dashboard["templating"]["list"]]
    assert [text for text in texts if not _CHINESE.search(text)] == []


def test_variables_choose_data_source_and_pool(dashboard: dict[str, Any]) -> None:
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert set(variables) == {"datasource", "pool"}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["pool"]["datasource"] == PROMETHEUS
    assert variables["pool"]["query"]["query"] == "label_values(tidegate_in_flight, pool)"


def test_the_schema_is_that_of_the_provisioned_grafana(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] == 41
    assert dashboard["uid"] == "tidegate"
    # Grafana gives a provisioned dashboard its own number.
    assert dashboard["id"] is None


def test_watermarks_are_drawn_where_the_configuration_has_them(
    directory: Path, panels: list[dict[str, Any]]
) -> None:
    classes = load(directory / "tidegate.yaml").classes
    [panel] = [p for p in panels if p["title"].startswith("Free KV cache")]
    drawn = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    assert drawn == [None, classes["P1"].free_watermark.close, classes["P2"].free_watermark.close]


def test_grafana_finds_data_source_and_dashboard(directory: Path, stack: dict[str, Any]) -> None:
    provisioning = directory / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    [source] = sources["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert source["url"].removeprefix("http://").partition(":")[0] in stack["services"]
    scrape = yaml.safe_load((directory / "prometheus" / "prometheus.yaml").read_text())
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
    providers = yaml.safe_load((provisioning / "dashboards" / "tidegate.yaml").read_text())
    [provider] = providers["providers"]
    mounted = "./grafana/dashboards:" + provider["options"]["path"] + ":ro"
    assert mounted in stack["services"]["grafana"]["volumes"]
