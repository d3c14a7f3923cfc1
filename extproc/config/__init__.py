"""The typed configuration: what users write in ``tidegate.yaml``."""

from extproc.config.load import ConfigError, Problem, load, load_keys, load_ticket_key, parse
from extproc.config.model import Config, Endpoints, PoolConfig, Scrape

__all__ = [
    "Config",
    "ConfigError",
    "Endpoints",
    "PoolConfig",
    "Problem",
    "Scrape",
    "load",
    "load_keys",
    "load_ticket_key",
    "parse",
]
