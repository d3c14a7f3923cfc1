"""Modes and thresholds: changed, kept, shared and audited.

Rules this module keeps:

* A change is in force before anything else is done about it; that it could not be written down or
  shared is told and does not undo it.
* Changes are made one after the other, each on what the one before left; one that has begun is
  finished, also where its caller is gone.
* What another Tidegate set is taken over where it counts more than what is in force here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from extproc.config import AdjustmentError, Changes, Config, laid_over
from extproc.control.audit import Audit
from extproc.control.auth import Caller
from extproc.control.settings import (
    ModeSetting,
    Settings,
    SettingsFile,
    ThresholdSetting,
    decode,
    encode,
)
from extproc.core.modes import Mode

log = logging.getLogger(__name__)

T = TypeVar("T")


class Levers(Protocol):
    """Brings settings into force; see `extproc.control.levers`."""

    def switch(self, mode: Mode) -> int:
        """Go over to a mode; return how many calls that waited are turned away."""
        ...

    def evict(self) -> int:
        """End running calls of the classes that are closed; return how many."""
        ...

    def adjust(self, changes: Changes) -> None:
        """Lay changes over the configuration file, or raise `AdjustmentError`."""
        ...

    def going_over(self, written: Config, changes: Changes) -> Callable[[], None]:
        """Return what goes over to a configuration, or raise `AdjustmentError`, `ConfigError`."""
        ...


@dataclass(frozen=True, slots=True)
class Effect:
    """What a mode did to calls: how many that waited were turned away, how many that ran are cut."""

    turned_away: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change did: the settings before and after, and what could not be done besides."""

    before: Settings
    after: Settings
    effect: Effect
    warnings: tuple[str, ...]


class Operations:
    """The settings of this Tidegate.

    Args:
        levers: bring them into force.
        file: keeps them, or None where they last as long as the process.
        audit: says who changed what, or None.
        wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        levers: Levers,
        *,
        file: SettingsFile | None,
        audit: Audit | None,
        wall_clock: Callable[[], float],
    ) -> None:
        self.settings = Settings()
        self.publish: Callable[[], bool] | None = None
        """Has all other Tidegates told; returns whether there is a way to do so now."""
        self._levers = levers
        self._file = file
        self.audit = audit
        self._wall_clock = wall_clock
        self._lock = asyncio.Lock()
        self._begun: set[asyncio.Future[Any]] = set()
        self._news = asyncio.Event()

    def restore(self) -> None:
        """Bring into force what is kept; to be called once, before serving.

        Raises:
            UnreadableSettingsError: what is kept cannot be read.
        """
        if self._file is not None:
            self._apply(self._file.load())
            log.info("settings restored", extra=_told(self.settings))

    async def set_mode(
        self, mode: Mode, caller: Caller, reason: str, *, evict: bool = False
    ) -> Changed:
        """Switch to a mode; with ``evict``, end running calls of the classes that close, too."""

        async def change() -> Changed:
            setting = ModeSetting(
                mode=mode, evict=evict, by=caller.who, at=self._wall_clock(), reason=reason
            )
            was = self.settings.mode.mode
            changed = msgspec.structs.replace(self.settings, mode=setting)
            return await self._change(changed, caller, "mode.set", was.value, mode.value, reason)

        return await self._in_turn(change)

    async def set_thresholds(self, changes: Changes, caller: Caller, reason: str) -> Changed:
        """Change thresholds; those that are not named stay.

        Raises:
            AdjustmentError: they may not be so; nothing has changed.
        """

        async def change() -> Changed:
            together = laid_over(self.settings.thresholds.changes, changes)
            return await self._adjust("thresholds.set", together, caller, reason)

        return await self._in_turn(change)

    async def reset_thresholds(self, caller: Caller, reason: str) -> Changed:
        """Go back to the configuration file's."""
        return await self._in_turn(lambda: self._adjust("thresholds.reset", {}, caller, reason))

    async def go_over(self, read: Callable[[], Config]) -> None:
        """Go over to another configuration; what operators have changed stays laid over it.

        Args:
            read: reads it; called in another thread, because it takes its time.

        Raises:
            AdjustmentError: what operators have changed cannot be laid over it; nothing has changed.
            ConfigError: it cannot be used; nothing has changed.
        """

        async def change() -> None:
            changes = self.settings.thresholds.changes
            go_over = await asyncio.to_thread(lambda: self._levers.going_over(read(), changes))
            go_over()

        await self._in_turn(change)

    async def adopt(self, document: bytes) -> None:
        """Take over what another Tidegate has set, where it counts more.

        Thresholds that its configuration allows and ours does not are left out, and told in the log.
        """
        settings = decode(document)

        async def take_over() -> None:
            if settings.rank <= self.settings.rank:
                return
            try:
                self._apply(settings)
            except AdjustmentError as error:
                log.error("thresholds cannot be adopted", extra={"why": str(error)})
                mine = self.settings.thresholds
                self._apply(msgspec.structs.replace(settings, thresholds=mine))
            log.info("settings adopted", extra=_told(settings))
            await self._save()

        await self._in_turn(take_over)

    async def finish(self) -> None:
        """Wait for changes that have begun; to be called when no more can come."""
        await asyncio.gather(*self._begun, return_exceptions=True)

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def locked() -> T:
            async with self._lock:
                return await work()

        task = asyncio.ensure_future(locked())
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return await asyncio.shield(task)

    async def watch(self, interval: float) -> AsyncIterator[None]:
        """Yield at once, after each change, and ``interval`` seconds after the last time."""
        while True:
            yield
            news = self._news
            try:
                async with asyncio.timeout(interval):
                    await news.wait()
            except TimeoutError:
                continue

    async def _adjust(self, action: str, changes: Changes, caller: Caller, reason: str) -> Changed:
        before = self.settings.thresholds.changes
        setting = ThresholdSetting(
            changes=laid_over({}, changes), by=caller.who, at=self._wall_clock(), reason=reason
        )
        changed = msgspec.structs.replace(self.settings, thresholds=setting)
        return await self._change(changed, caller, action, before, setting.changes, reason)

    async def _change(
        self, settings: Settings, caller: Caller, action: str, was: object, now: object, reason: str
    ) -> Changed:
        before = self.settings
        after = msgspec.structs.replace(settings, revision=before.revision + 1)
        effect = self._apply(after)
        warnings = [self._publish(), await self._save()]
        if self.audit is not None:
            told = await self.audit.record(caller, action, before=was, after=now, reason=reason)
            warnings.append(told)
        return Changed(before, after, effect, tuple(each for each in warnings if each))

    def _apply(self, settings: Settings) -> Effect:
        """Bring settings into force; nothing is changed where that raises."""
        before, turned_away, evicted = self.settings, 0, 0
        if settings.thresholds.changes != before.thresholds.changes:
            self._levers.adjust(settings.thresholds.changes)
        if settings.mode.mode is not before.mode.mode:
            turned_away = self._levers.switch(settings.mode.mode)
        if settings.mode.evict and settings.mode != before.mode:
            evicted = self._levers.evict()
        self.settings = settings
        self._news.set()
        self._news = asyncio.Event()
        return Effect(turned_away, evicted)

    async def _save(self) -> str | None:
        if self._file is None:
            return None
        try:
            await asyncio.to_thread(self._file.save, self.settings)
        except OSError as error:
            log.error("settings cannot be kept", extra={"error": error.strerror})
            return f"a restart would forget this: the settings cannot be written ({error.strerror})"
        return None

    def mine(self) -> tuple[str, bytes]:
        """Return what all Tidegates should know of, and its rank."""
        return self.settings.rank, encode(self.settings)

    def _publish(self) -> str | None:
        if self.publish is None or self.publish():
            return None
        return "the other Tidegates do not know of this yet: Redis cannot be reached"


def _told(settings: Settings) -> dict[str, object]:
    return {
        "revision": settings.revision,
        "mode": settings.mode.mode.value,
        "mode_by": settings.mode.by,
        "thresholds": settings.thresholds.changes,
    }
