"""The generated code is what the protos say: ``make protos`` changes nothing."""

from pathlib import Path

import pytest

from protos.generate import TARGET, generate


def test_generating_anew_gives_the_same_bytes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path)
    capfd.readouterr()  # the plugins tell which files they write

    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in TARGET.iterdir() if path.is_file()}
    assert sorted(made) == sorted(kept)
    assert made == kept
