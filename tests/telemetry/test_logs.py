"""How logs look, and what they never show."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from extproc.telemetry import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail(prompt: str) -> None:
    raise RuntimeError(f"{len(prompt)} characters")


def test_a_line_is_a_json_object_with_what_was_added() -> None:
    stream = io.StringIO()
    logs.configure(stream)

    logging.getLogger("extproc.engines").warning("unreadable", extra={"endpoint": "a:1"})
    logging.getLogger("extproc.engines").debug("not shown")

    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    said.pop("timestamp")
    assert said == {
        "event": "unreadable",
        "level": "warning",
        "logger": "extproc.engines",
        "endpoint": "a:1",
    }


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_traceback_shows_code_and_no_values(stream: io.StringIO) -> None:
    logs.configure(stream)
    prompt = "-".join(["a", "private", "prompt"])
    try:
        fail(prompt)
    except RuntimeError:
        logging.getLogger("extproc").exception("exchange failed")

    shown = stream.getvalue()
    assert "exchange failed" in shown
    assert "RuntimeError: 16 characters" in shown
    assert "in fail" in shown
    assert "a-private-prompt" not in shown
