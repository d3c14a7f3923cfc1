"""Logs: one JSON object per line, or coloured lines on a terminal.

Rules this module keeps:

* Modules log through the standard library with ``extra={…}``; how it looks is decided here alone.
* A traceback shows code, never the values of variables nor an exception's message: those may be a
  caller's prompt or key. Of what the operating system says, its word for the error is shown.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

log = logging.getLogger(__name__)

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


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
        last = [structlog.dev.ConsoleRenderer(exception_formatter=_on_terminal)]
    else:
        last = [_in_json, structlog.processors.JSONRenderer()]
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


def own_faults() -> None:
    """Log what nobody catches, in this thread, in others and in their ends, as the rules above say."""
    sys.excepthook = lambda _kind, error, _place: _ended(error)
    threading.excepthook = lambda fault: _ended(fault.exc_value)


def loop_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a fault that the event loop met; to be given to its ``set_exception_handler``.

    What asyncio would say of it shows the arguments of callbacks and the results of tasks.
    """
    log.error("fault in the event loop", exc_info=context.get("exception"))


def _ended(error: BaseException | None) -> None:
    log.critical("ended by a fault", exc_info=error)


def told(error: BaseException) -> str:
    """Return an exception's kind and place, and those of what led to it."""
    return "".join(_told(error, set()))


def _told(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and id(earlier) not in seen:
        yield from _told(earlier, seen)
        yield "which led to:\n"
    yield from traceback.format_tb(error.__traceback__)
    kind = type(error).__qualname__
    yield f"{kind}: {error.strerror}\n" if isinstance(error, OSError) else f"{kind}\n"
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            if id(each) not in seen:
                yield "of it:\n"
                yield from _told(each, seen)


def _in_json(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    info = event.pop("exc_info", None)
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["exception"] = told(error)
    return event


def _on_terminal(
    out: TextIO, info: tuple[type[BaseException], BaseException, TracebackType | None]
) -> None:
    out.write("\n" + told(info[1]))
