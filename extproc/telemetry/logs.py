"""Logs: one JSON object per line, or coloured lines on a terminal.

Rules this module keeps:

* Modules log through the standard library with ``extra={…}``; how it looks is decided here alone.
* A traceback shows code, never the values of variables: those may be a caller's prompt or key.
"""

from __future__ import annotations

import logging
from typing import TextIO

import structlog
from structlog.types import Processor


def configure(stream: TextIO, level: int = logging.INFO) -> None:
    """Send all logs of this process to ``stream``; coloured where that is a terminal."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor]
    if stream.isatty():
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of each of its plugins
