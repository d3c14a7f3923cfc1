"""The stand's own Redis."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from extproc.stand import redis
from extproc.stand.redis import RedisNotFoundError, redis_command


def test_it_is_there(tmp_path: Path) -> None:
    command = redis_command(tmp_path / "s")
    shown = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("Redis server v=")


def test_without_its_package_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "find_spec", lambda _: None)
    with pytest.raises(RedisNotFoundError, match="pip install"):
        redis_command(tmp_path / "s")
