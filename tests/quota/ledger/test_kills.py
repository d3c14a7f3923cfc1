"""A kill at every await and at every statement of either database: see `kill_points.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("database_url", "occurrences"),
    [("sqlite", 1000), ("postgresql", 2)],
    indirect=["database_url"],
)
def test_killed_at_every_point_the_books_are_right_after_the_next_start(
    database_url: str, occurrences: int, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("kill_points.py")
    command = [sys.executable, str(script), database_url, str(tmp_path), str(occurrences)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=500)
    report = json.loads(done.stdout)
    assert report["failures"] == {}
    assert report["missed"] == []
    assert report["killed"] > 80
    names = "\n".join(report["names"])
    for step in ("INSERT INTO holds", "UPDATE holds", "INSERT INTO transactions", "UPDATE subscriptions",
                 "INSERT INTO subscriptions", "ledger commit", "journal COMMIT", "journal INSERT",
                 "journal DELETE", "await _store", "await _carry", "await _insist"):  # fmt: skip
        assert step in names
