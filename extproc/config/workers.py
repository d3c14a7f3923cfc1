"""What differs between the workers of one Tidegate: addresses and files that only one process may have.

Rules this module keeps:

* The first worker has what the configuration names; the others have the same with their number.
* The control API is the first one's. Modes and thresholds reach the others through Redis.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from extproc.config.control import ControlConfig
from extproc.config.load import ConfigError, Problem
from extproc.config.model import Config


def with_workers(config: Config, workers: int, file: Path) -> Config:
    """Return a configuration with another number of workers.

    Raises:
        ConfigError: it does not allow that.
    """
    data = config.model_dump(by_alias=True)
    data["listen"]["workers"] = workers
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        reasons = [each["msg"].removeprefix("Value error, ") for each in details]
        raise ConfigError(
            file, tuple(Problem(None, "--workers", str(workers), each) for each in reasons)
        ) from None


def processor_addresses(address: str, workers: int) -> tuple[str, ...]:
    """Return where each worker answers Envoy: sockets by their number, or ports that follow."""
    if address.startswith("unix://"):
        return tuple(_numbered(address, number) for number in range(1, workers + 1))
    host, _, port = address.rpartition(":")
    return tuple(f"{host}:{int(port) + index}" for index in range(workers))


def of_worker(config: Config, number: int) -> Config:
    """Return the configuration of one worker, counted from 1."""
    listen, log = config.listen, config.decision_log
    addresses = processor_addresses(listen.processor, listen.workers)
    changed: dict[str, object] = {
        "listen": listen.model_copy(update={"processor": addresses[number - 1]})
    }
    if number > 1:
        changed["control"] = ControlConfig(directory=config.control.directory)
        outbox = Path(_numbered(str(config.state.outbox), number))
        changed["state"] = config.state.model_copy(update={"outbox": outbox})
        if log is not None:
            file = Path(_numbered(str(log.file), number))
            changed["decision_log"] = log.model_copy(update={"file": file})
    return config.model_copy(update=changed)


def _numbered(path: str, number: int) -> str:
    """Return the path with a number before its suffix; the first one's is left as it is."""
    if number == 1:
        return path
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    return f"{folder}{slash}{stem}-{number}{dot}{suffix}" if stem else f"{path}-{number}"
