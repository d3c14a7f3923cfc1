from __future__ import annotations

from pathlib import Path

import pytest

from bench import workers


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workers, "_GROUPS", tmp_path)
    # A folder of files is no control group: it is not emptied by moving its processes.
    monkeypatch.setattr(workers, "_dissolve", lambda _: None)
    return tmp_path


def said(group: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in group.iterdir()}


def test_each_worker_is_held_by_a_group_of_its_own(groups: Path) -> None:
    with workers.held([11, 12], 0.15):
        for pid in (11, 12):
            found = said(groups / f"tidegate-bench-{pid}")
            assert found == {"cpu.max": "1500 10000", "cgroup.procs": str(pid)}


def test_older_kernels_have_a_hierarchy_for_cpu(groups: Path) -> None:
    (groups / "cpu").mkdir()
    with workers.held([11], 0.5):
        assert said(groups / "cpu" / "tidegate-bench-11") == {
            "cpu.cfs_period_us": "10000",
            "cpu.cfs_quota_us": "5000",
            "cgroup.procs": "11",
        }


def test_a_whole_core_is_not_held(groups: Path) -> None:
    with workers.held([11], 1.0):
        assert not list(groups.iterdir())


def test_where_there_are_no_groups_that_is_said(groups: Path) -> None:
    groups.rmdir()
    with pytest.raises(workers.NoQuotaError, match="cannot be held"), workers.held([11], 0.5):
        pass
