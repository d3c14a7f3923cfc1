"""The typed configuration: what users write in ``tidegate.yaml``."""

from extproc.config.classes import catalog_of, pool_limits, reply_rules, service_classes
from extproc.config.control import ControlConfig, Role, Token
from extproc.config.endpoints_file import EndpointsError, parse_endpoints
from extproc.config.live import AdjustmentError, Changes, adjusted, laid_over, named
from extproc.config.load import (
    ConfigError,
    Problem,
    load,
    load_keys,
    load_ticket_key,
    load_tokens,
    parse,
)
from extproc.config.model import Config, Endpoints, PoolConfig, Scrape
from extproc.config.plans import plans
from extproc.config.redis_url import RedisAddress, parse_redis_url
from extproc.config.reload import refuse_fixed
from extproc.config.runs import agent_policy
from extproc.config.workers import of_worker, processor_addresses, with_workers

__all__ = [
    "AdjustmentError",
    "Changes",
    "Config",
    "ConfigError",
    "ControlConfig",
    "Endpoints",
    "EndpointsError",
    "PoolConfig",
    "Problem",
    "RedisAddress",
    "Role",
    "Scrape",
    "Token",
    "adjusted",
    "agent_policy",
    "catalog_of",
    "laid_over",
    "load",
    "load_keys",
    "load_ticket_key",
    "load_tokens",
    "named",
    "of_worker",
    "parse",
    "parse_endpoints",
    "parse_redis_url",
    "plans",
    "pool_limits",
    "processor_addresses",
    "refuse_fixed",
    "reply_rules",
    "service_classes",
    "with_workers",
]
