"""The outbox's file: what is on its way to the ledger outlives the process.

Rules this module keeps:

* What `append` has returned for is on the disk: it survives a kill and a loss of power.
* One process at a time: the file is locked for as long as it is open.
* The file grows to a bound. Beyond it `append` fails as on a full disk, until something is forgotten.
* Each call blocks, and all calls come from one thread.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from extproc.quota.errors import JournalError
from extproc.quota.ledger import Record, Started
from extproc.quota.ports import Hold, Settlement

DEFAULT_BOUND = 1 << 30
"""Bytes: some six million records, eight hours of a hundred calls a second."""

_KINDS: dict[str, type[Record]] = {"hold": Hold, "settlement": Settlement, "started": Started}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_TABLES = """
CREATE TABLE IF NOT EXISTS self (owner TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (
  number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at REAL NOT NULL, record BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS refused (
  number INTEGER PRIMARY KEY, kind TEXT NOT NULL, at REAL NOT NULL, record BLOB NOT NULL, why TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A record with its number, which grows, and when it was put, in seconds since 1970."""

    number: int
    at: float
    record: Record


class Journal:
    """The file of one outbox; `open` comes first.

    Attributes:
        owner: names this outbox, for as long as the file lives.
        count: records that are not in the ledger yet.
        oldest: when the oldest of them was put, in seconds since 1970; None where there is none.
        used: share of the bound that is taken, 0..1.

    Args:
        path: the file; it is made where it is not there.
        bound: bytes that it may grow to.
    """

    _file: sqlite3.Connection

    def __init__(self, path: Path, bound: int = DEFAULT_BOUND) -> None:
        self._path = path
        self._bound = bound
        self.owner = ""
        self.count = 0
        self.oldest: float | None = None
        self.used = 0.0

    def open(self) -> None:
        """Open the file, for this process alone.

        Raises:
            JournalError: another process has it, its folder is not there, or it is no such file.
        """
        path = self._path
        try:
            self._file = _open(path, self._bound)
        except sqlite3.OperationalError as error:
            raise JournalError(
                f"state.outbox: {path} cannot be opened ({error}); each Tidegate needs one of its "
                "own, in a folder that it may write to"
            ) from error
        except sqlite3.DatabaseError as error:
            raise JournalError(
                f"state.outbox: {path} is no outbox ({error}); move it away"
            ) from error
        self.owner = str(self._one("SELECT owner FROM self"))
        self._take_stock()

    def append(self, records: Sequence[Record], at: float) -> int:
        """Store records, all or none, and return the last one's number.

        Raises:
            sqlite3.Error: the disk is full or fails, or the bound is reached.
        """
        rows = [(_NAMES[type(each)], at, msgspec.json.encode(each)) for each in records]
        with self._file:
            self._file.execute("BEGIN")
            self._file.executemany("INSERT INTO records (kind, at, record) VALUES (?, ?, ?)", rows)
        self._take_stock()
        return int(str(self._one("SELECT max(number) FROM records")))

    def read(self, limit: int) -> list[Stored]:
        """Return the oldest records."""
        rows = self._file.execute(
            "SELECT number, at, kind, record FROM records ORDER BY number LIMIT ?", (limit,)
        )
        return [
            Stored(number, at, msgspec.json.decode(record, type=_KINDS[kind]))
            for number, at, kind, record in rows
        ]

    def forget(self, number: int) -> None:
        """Remove all records up to a number: the ledger has them."""
        with self._file:
            self._file.execute("BEGIN")
            self._file.execute("DELETE FROM records WHERE number <= ?", (number,))
        self._take_stock()

    def refuse(self, number: int, why: str) -> None:
        """Put a record aside that the ledger will never take, for somebody to look at."""
        with self._file:
            self._file.execute("BEGIN")
            self._file.execute(
                "INSERT INTO refused SELECT number, kind, at, record, ? FROM records WHERE number = ?",
                (why, number),
            )
            self._file.execute("DELETE FROM records WHERE number = ?", (number,))
        self._take_stock()

    def close(self) -> None:
        """Close the file and let others have it."""
        self._file.close()

    def _take_stock(self) -> None:
        # Numbers have no gaps but those that `refuse` makes: no need to count a million rows.
        statement = (
            "SELECT (SELECT min(number) FROM records), (SELECT max(number) FROM records), "
            "(SELECT at FROM records ORDER BY number LIMIT 1)"
        )
        first, last, self.oldest = self._file.execute(statement).fetchone()
        self.count = 0 if first is None else last - first + 1
        # What was forgotten leaves the file as long as it was, with pages to be used again.
        pages, free, most = (
            self._file.execute(f"PRAGMA {each}").fetchone()[0]
            for each in ("page_count", "freelist_count", "max_page_count")
        )
        self.used = (pages - free) / most

    def _one(self, statement: str) -> object:
        (value,) = self._file.execute(statement).fetchone()
        return value


def _open(path: Path, bound: int) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        file.execute("PRAGMA locking_mode = EXCLUSIVE")
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = FULL")
        (page,) = file.execute("PRAGMA page_size").fetchone()
        file.execute(f"PRAGMA max_page_count = {max(16, bound // page)}")
        file.executescript("BEGIN IMMEDIATE;" + _TABLES + "COMMIT;")
        if file.execute("SELECT count(*) FROM self").fetchone() == (0,):
            file.execute("INSERT INTO self VALUES (?)", (secrets.token_hex(8),))
    except BaseException:
        file.close()
        raise
    return file
