"""What operators can move while Tidegate serves, and what moves with it."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.config import Changes, Config, adjusted, catalog_of, pool_limits
from extproc.core.capacity import Pool
from extproc.core.controller import Line
from extproc.core.modes import Mode, ModeGate
from extproc.edge.admission import Admission


class Levers:
    """Brings modes and thresholds into force, at once and in this process.

    Attributes:
        config: the configuration as it is in force.
        gate: knows the mode.
    """

    def __init__(
        self,
        config: Config,
        *,
        pools: Mapping[str, Pool],
        lines: Mapping[str, Line],
        gate: ModeGate,
        admission: Admission,
    ) -> None:
        self.config = config
        self.gate = gate
        self._written = config
        self._pools = pools
        self._lines = lines
        self._admission = admission

    def switch(self, mode: Mode) -> int:
        """Go over to a mode; return how many calls that waited are turned away."""
        self.gate.switch(mode)
        return self._admission.switch(self.gate, shadow=mode is Mode.SHADOW)

    def evict(self) -> int:
        """End running calls of the classes that the mode closes; return how many.

        That is those that can be ended well: of evictable classes, and prepared for it when they
        were let in, because the pool was not empty.
        """
        return self._admission.cut(self.gate.closed())

    def adjust(self, changes: Changes) -> None:
        """Lay changes over the configuration file; what was laid over it before is forgotten.

        Raises:
            AdjustmentError: they may not be made; nothing has changed.
        """
        config = adjusted(self._written, changes)
        catalog = catalog_of(config)
        for name, pool in self._pools.items():
            pool.adjust(pool_limits(config.pools[name]), catalog.classes)
        for line in self._lines.values():
            line.queue.adjust(catalog.classes)
        self._admission.adjust(catalog)
        self.config = config
