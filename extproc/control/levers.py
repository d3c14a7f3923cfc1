"""What operators can move while Tidegate serves, and what moves with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from extproc.config import Changes, Config, adjusted, catalog_of, pool_limits
from extproc.core.capacity import Pool
from extproc.core.classes import Catalog
from extproc.core.controller import Line
from extproc.core.modes import Mode, ModeGate
from extproc.edge.admission import Admission
from extproc.edge.terms import Terms


class Levers:
    """Brings modes, thresholds and configurations into force, at once and in this process.

    Args:
        config: the configuration as it is written.
        pools, lines, gate, admission: what goes by it.
        terms: makes of a configuration what calls are judged by.

    Attributes:
        followers: what else goes over to another configuration.
        config: the configuration as it is in force.
        written: the same without what operators have changed.
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
        terms: Callable[[Config], Terms],
        followers: Sequence[Callable[[Config], None]] = (),
    ) -> None:
        self.config = self.written = config
        self.gate = gate
        self._pools = pools
        self._lines = lines
        self._admission = admission
        self._terms = terms
        self.followers = tuple(followers)

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
        config = adjusted(self.written, changes)
        catalog = catalog_of(config)
        self._move(config, catalog)
        self._admission.adjust(catalog)

    def going_over(self, written: Config, changes: Changes) -> Callable[[], None]:
        """Return what goes over to another configuration, and lays changes over it, when called.

        This takes as long as the configuration is large, may be called in any thread, and changes
        nothing; what it returns does not and does.

        Raises:
            AdjustmentError: the changes may not be made to it.
            ConfigError: a file that it names cannot be used.
        """
        config = adjusted(written, changes) if changes else written
        terms = self._terms(config)

        def go_over() -> None:
            self.written = written
            self._move(config, terms.catalog)
            self._admission.go_over(terms)
            for follow in self.followers:
                follow(config)

        return go_over

    def _move(self, config: Config, catalog: Catalog) -> None:
        for name, pool in self._pools.items():
            pool.adjust(pool_limits(config.pools[name]), catalog.classes)
        for line in self._lines.values():
            line.queue.adjust(catalog.classes)
        self.config = config
