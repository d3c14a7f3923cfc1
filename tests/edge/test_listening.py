"""gRPC is told how to listen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, "-event_engine_listener"), ({"GRPC_EXPERIMENTS": "own"}, "own")],
)
def test_grpc_reads_in_the_thread_that_polls_unless_somebody_chose_otherwise(
    before: dict[str, str], after: str
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    program = "import extproc, os; print(os.environ['GRPC_EXPERIMENTS'])"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=inherited | before,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == f"{after}\n"
