"""The typed configuration: what users write in ``tidegate.yaml``."""

from extproc.config.classes import service_classes
from extproc.config.endpoints_file import EndpointsError, parse_endpoints
from extproc.config.load import ConfigError, Problem, load, load_keys, load_ticket_key, parse
from extproc.config.model import Config, Endpoints, PoolConfig, Scrape
from extproc.config.plans import plans

__all__ = [
    "Config",
    "ConfigError",
    "Endpoints",
    "EndpointsError",
    "PoolConfig",
    "Problem",
    "Scrape",
    "load",
    "load_keys",
    "load_ticket_key",
    "parse",
    "parse_endpoints",
    "plans",
    "service_classes",
]
