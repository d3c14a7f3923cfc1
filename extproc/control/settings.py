"""What operators have set: the mode and the thresholds, as it is kept and shared.

Rules this module keeps:

* What was set outlives this process: it is replaced on disk as a whole, and synced.
* Of two settings the one with the higher revision counts; of equal ones the one that was made later.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from extproc.core.modes import Mode

Changes = dict[str, dict[str, dict[str, Any]]]
"""What differs from the configuration file, in its own words: ``{"classes": {"P2": {…}}}``."""


class ModeSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The mode; who set it, when (Unix time, 0 where nobody did) and why.

    ``evict``: running calls of the classes that close were to be ended, too.
    """

    mode: Mode = Mode.NORMAL
    evict: bool = False
    by: str = ""
    at: float = 0.0
    reason: str = ""


class ThresholdSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds that differ from the configuration file; who set them, when and why."""

    changes: Changes = {}
    by: str = ""
    at: float = 0.0
    reason: str = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that operators have set, counted by ``revision``."""

    revision: int = 0
    mode: ModeSetting = ModeSetting()
    thresholds: ThresholdSetting = ThresholdSetting()

    @property
    def rank(self) -> str:
        """What settings are compared by, as text: the higher ones count."""
        microseconds = round(1e6 * max(self.mode.at, self.thresholds.at))
        return f"{self.revision:015d} {microseconds:020d}"


class UnreadableSettingsError(RuntimeError):
    """The settings on disk cannot be read; the text says what to do."""


class SettingsFile:
    """The settings on disk."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def load(self) -> Settings:
        """Return what is kept, or the defaults where nothing is.

        Raises:
            UnreadableSettingsError: the file is there and holds something else.
        """
        try:
            return decode(self._file.read_bytes())
        except FileNotFoundError:
            return Settings()
        except (OSError, msgspec.DecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it holds something else"
            raise UnreadableSettingsError(
                f"{self._file} cannot be read ({why}): mend it, or remove it to start in normal mode"
            ) from error

    def save(self, settings: Settings) -> None:
        """Replace what is kept.

        Raises:
            OSError: it cannot be written; what was kept before still is.
        """
        new = self._file.with_suffix(".new")
        with new.open("wb") as file:
            file.write(encode(settings))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file)


def encode(settings: Settings) -> bytes:
    """Return settings as JSON."""
    return msgspec.json.encode(settings)


def decode(document: bytes) -> Settings:
    """Return settings from JSON.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    return msgspec.json.decode(document, type=Settings)
