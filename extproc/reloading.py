"""Goes over to a configuration file that has changed, when asked to.

Rules this module keeps:

* All or nothing: a file that cannot be used, or that a restart only would take over, is told in the log
  problem by problem, and the old configuration stays.
* The file is read and judged in another thread; what calls are judged by changes between two calls.
* However often it is asked, it reads the file once more, not more often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from extproc.config import AdjustmentError, Config, ConfigError, refuse_fixed
from extproc.control.levers import Levers
from extproc.control.operations import Operations

log = logging.getLogger(__name__)


class Reloading:
    """See the module's rules.

    Args:
        file: the configuration file.
        read: reads it; raises `ConfigError`.
        levers, operations: bring it into force.
        told: hears whether it could be taken over.
    """

    def __init__(
        self,
        file: Path,
        read: Callable[[], Config],
        levers: Levers,
        operations: Operations,
        told: Callable[[bool], None],
    ) -> None:
        self._file = file
        self._read = read
        self._levers = levers
        self._operations = operations
        self._told = told
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Have the file taken over soon."""
        self._asked.set()

    async def run(self) -> None:
        """Do as asked, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.reload()

    async def reload(self) -> None:
        """Take the file over now, if it can be."""
        try:
            await self._operations.go_over(self._new)
        except (ConfigError, AdjustmentError) as error:
            problems = error.problems if isinstance(error, ConfigError) else (error,)
            for problem in problems:
                log.error(
                    "the configuration stays as it is",
                    extra={"file": str(self._file), "problem": str(problem)},
                )
            self._told(False)
        else:
            log.info("configuration taken over", extra={"file": str(self._file)})
            self._told(True)

    def _new(self) -> Config:
        config = self._read()
        refuse_fixed(self._levers.written, config, self._file)
        return config
