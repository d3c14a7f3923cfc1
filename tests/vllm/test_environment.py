"""A build is taken for whole only when it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.environment import made_once

pytestmark = pytest.mark.vllm


def fill(folder: Path) -> None:
    folder.mkdir()
    (folder / "half").touch()
    (folder / "whole").touch()


def break_off(folder: Path) -> None:
    folder.mkdir()
    (folder / "half").touch()
    raise KeyboardInterrupt


def refuse(folder: Path) -> None:
    raise AssertionError(f"{folder} was built again")


def names(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def test_a_whole_folder_is_used_again(tmp_path: Path) -> None:
    made_once(tmp_path / "env-1", fill)

    assert made_once(tmp_path / "env-1", refuse) == tmp_path / "env-1"
    assert names(tmp_path) == ["env-1", "env-1/half", "env-1/whole"]


def test_an_interrupted_build_starts_anew(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        made_once(tmp_path / "env-1", break_off)
    assert not (tmp_path / "env-1").exists()

    made_once(tmp_path / "env-1", fill)

    assert names(tmp_path) == ["env-1", "env-1/half", "env-1/whole"]


def test_a_changed_recipe_leaves_the_old_folder_to_those_who_use_it(tmp_path: Path) -> None:
    made_once(tmp_path / "env-1", fill)

    made_once(tmp_path / "env-2", fill)

    assert {path.name for path in tmp_path.iterdir()} == {"env-1", "env-2"}
