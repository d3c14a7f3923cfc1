"""The decision log: one JSON line for each verdict, in files that are rotated by size.

Rules this module keeps:

* Who decides waits for nothing: batches are handed to a thread of its own, which makes the lines and
  writes them.
* A disk that is slow or full costs lines, never decisions and never memory (`handover`). What is lost
  is counted and told.
* A file is complete when the next one is begun; a line is never split over two.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec

from extproc.telemetry.handover import Handover
from extproc.telemetry.lines import Line, decode, encode, line_of
from extproc.telemetry.recorder import Remembered

log = logging.getLogger(__name__)


class DecisionLog:
    """Writes what it is handed.

    Args:
        file: the file that is written to; older ones are ``file.1``, ``file.2``, …
        max_bytes: a file that has grown over this is put aside.
        keep: how many older files there may be.
    """

    def __init__(self, file: Path, *, max_bytes: int, keep: int) -> None:
        """Raises OSError where the file cannot be written to."""
        with file.open("ab"):
            pass
        self._file = file
        self._max_bytes = max_bytes
        self._keep = keep
        self._handover = Handover("decision-log", self._note)
        self._troubled = False
        self.lost = 0

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Write inside the block; at its end what was handed over is on disk."""
        return self._handover.working()

    def take(self, batch: list[Remembered]) -> None:
        """Take decisions over; returns at once."""
        if not self._handover.put(batch):
            self._lose(len(batch), "the disk is slower than decisions come")

    def _note(self, batch: list[Remembered]) -> None:
        text = b"".join([encode(line_of(each.record, each.at)) + b"\n" for each in batch])
        try:
            self._write(text)
            self._troubled = False
        except OSError as error:
            self._lose(len(batch), str(error.strerror))

    def _write(self, text: bytes) -> None:
        with self._file.open("ab") as file:
            full = file.tell() > 0 and file.tell() + len(text) > self._max_bytes
            if not full:
                file.write(text)
                return
        self._rotate()
        with self._file.open("ab") as file:
            file.write(text)

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            older = _numbered(self._file, number)
            if older.exists():
                older.replace(_numbered(self._file, number + 1))
        if self._keep:
            self._file.replace(_numbered(self._file, 1))
        else:
            self._file.unlink()

    def _lose(self, lines: int, why: str) -> None:
        self.lost += lines
        if not self._troubled:
            log.error("decisions are not written down", extra={"why": why, "lost": self.lost})
        self._troubled = True


def read(file: Path) -> Iterator[Line]:
    """Yield the lines of a log and of the older files beside it, the oldest first.

    What is no line, such as the last one of a machine that lost its power, is passed over.

    Raises:
        OSError: a file cannot be read.
    """
    numbers = [0]
    while _numbered(file, numbers[-1] + 1).exists():
        numbers.append(numbers[-1] + 1)
    for number in reversed(numbers):
        with _numbered(file, number).open("rb") as lines:
            for text in lines:
                with contextlib.suppress(msgspec.DecodeError):
                    yield decode(text)


def _numbered(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}") if number else file
