"""``tidegate drill``, with engines so small that a drill takes a moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from extproc.cli import app

SMALL = ("--seconds", "4", "--blocks", "256", "--seeds", "2", "--processes", "1")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("extproc.sim.drill.knee.PRECISION", 0.2)
    monkeypatch.setattr("extproc.sim.drill.knee.SEEDS", range(9001, 9002))


def drill(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["drill", *SMALL, *arguments], env={"COLUMNS": "120"})


def test_a_drill_prints_a_table_and_writes_its_numbers(tmp_path: Path) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        result = drill(
            "--load", "1,3", "--controllers", "none,tidegate,clairvoyant", "--json", str(file),
            "--plot", str(file.with_suffix(".svg")),
        )  # fmt: skip
        assert result.exit_code == 0, result.output
    assert "balanced (1× = " in result.output
    assert files[0].read_bytes() == files[1].read_bytes()
    pictures = [file.with_suffix(".svg").read_bytes() for file in files]
    assert pictures[0] == pictures[1]
    numbers = json.loads(files[0].read_text())
    assert numbers["seeds"] == [1, 2]
    assert [(cell["load"], cell["controller"]) for cell in numbers["cells"]] == [
        (1.0, "none"),
        (1.0, "tidegate"),
        (1.0, "clairvoyant"),
        (3.0, "none"),
        (3.0, "tidegate"),
        (3.0, "clairvoyant"),
    ]
    assert len(numbers["cells"][0]["scores"]["goodput"]["seeds"]) == 2


def test_a_trace_of_ones_own(tmp_path: Path) -> None:
    trace, config = tmp_path / "trace.csv", tmp_path / "tidegate.yaml"
    lines = (f"{n / 10},{'shop' if n % 2 else 'pay'},200,40\n" for n in range(40))
    trace.write_text("time,client,prompt,output\n" + "".join(lines))
    config.write_text(
        "tenants: {pay: {class: P0}, shop: {class: P1}}\n"
        "pools: {mine: {endpoints: {static: [a:1, b:1, c:1]}, balance: pick}}\n"
    )
    result = drill(
        "--trace", str(trace), "--scale", "1,2.5", "--config", str(config),
        "--controllers", "slots:8,tidegate",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "2.5×" in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--mix", "odd"), "there is no odd: use balanced"),
        (("--controllers", "magic"), "there is no controller magic"),
        (("--controllers", "slots:x"), "there is no controller slots:x"),
        (("--load", "much"), "much is no list of numbers"),
        (("--load", "0"), "loads are over 0"),
        (("--shape", "round"), "there is no round: use steady"),
        (("--fault", "fire"), "there is no fire: use none"),
        (("--trace", "/nowhere.csv"), "No such file"),
        (("--config", "/nowhere.yaml"), "/nowhere.yaml cannot be used"),
    ],
)
def test_wrong_options_are_explained(arguments: tuple[str, ...], complaint: str) -> None:
    result = drill(*arguments)
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_pool_must_exist(tmp_path: Path) -> None:
    config = tmp_path / "tidegate.yaml"
    config.write_text("{}\n")
    assert "has no pool" in drill("--config", str(config)).output
    assert "has no pool x" in drill("--config", str(config), "--pool", "x").output


def test_engines_that_are_too_slow_have_no_knee() -> None:
    result = drill("--mix", "azure-code", "--blocks", "256", "--max-num-batched-tokens", "1")
    assert result.exit_code == 1
    assert "too slow" in result.output
