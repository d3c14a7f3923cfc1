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
    [("sqlite", 1000), ("postgresql", 1)],
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
    # Where the outbox only waits is a matter of timing, and nothing is written there.
    assert [name for name in report["missed"] if not name.startswith("await _rest")] == []
    assert report["killed"] > 50
    names = "\n".join(report["names"])
    for step in ("INSERT INTO holds", "UPDATE holds", "INSERT INTO transactions", "UPDATE subscriptions",
                 "INSERT INTO subscriptions", "INSERT INTO campaigns", "UPDATE campaigns", "ledger commit", "journal COMMIT", "journal INSERT",
                 "journal DELETE", "await _store", "await _carry", "await _insist"):  # fmt: skip
        assert step in names
