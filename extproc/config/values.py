"""The kinds of values that a configuration is written with, each with its check."""

from __future__ import annotations

import ipaddress
import re
import string
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from extproc.config.redis_url import parse_redis_url
from extproc.core.classes import LONGEST_TENANT

_DURATION = re.compile(r"(?P<value>[0-9]{1,12}(?:\.[0-9]{1,12})?)(?P<unit>ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(?P<value>[0-9]{1,12})(?P<unit>KiB|MiB|GiB)?")
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})")
_BYTES = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _parse_duration(value: object) -> object:
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError("write a duration such as 200ms, 15s, 2m or 1h")
        return float(match["value"]) * _SECONDS[match["unit"]]
    return value


def _parse_size(value: object) -> object:
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError("write a size in bytes, or such as 64KiB or 16MiB")
        return int(match["value"]) * _BYTES[match["unit"]]
    return value


def _parse_address(value: str) -> str:
    if value.startswith("unix://"):
        if not value.removeprefix("unix://").startswith("/"):
            raise ValueError("write a socket as unix:// and an absolute path")
        return value
    match = _ADDRESS.fullmatch(value)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ValueError(
            "write host:port, the port from 1 to 65535, or unix:///absolute/path where a socket is "
            "accepted"
        )
    return value


def is_local(address: str) -> bool:
    """Say whether only this host can reach an address: a socket's, or one of loopback."""
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix://") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _harmless_finish(value: str) -> str:
    if value == "pause_turn":
        raise ValueError("pause_turn makes Anthropic clients resend in a tight loop")
    return value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Seconds = Annotated[
    float, BeforeValidator(_parse_duration), Field(ge=0, le=1e9, allow_inf_nan=False)
]
"""A duration in seconds, at most 1e9; written as ``200ms``, ``15s``, ``2m``, ``1h`` or a plain number."""
Size = Annotated[int, BeforeValidator(_parse_size), Field(gt=0, le=1 << 30)]
"""A size in bytes, up to 1 GiB, which Envoy and gRPC can hold; a number, or with KiB, MiB or GiB."""
Count = Annotated[int, Field(ge=1, le=1 << 53)]
"""A number of things, exact also where it is reckoned with as a float."""
Address = Annotated[str, AfterValidator(_parse_address)]
"""``host:port``, or ``unix:///path`` where a socket is accepted. IPv6 stands in brackets."""
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]
"""Things per second."""
StopText = Annotated[str, Field(min_length=1, max_length=256)]
StopOn = Annotated[
    tuple[Literal["complete_json", "repetition", "whitespace"], ...], BeforeValidator(_several)
]
"""One word or a list of them."""
FinishReason = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$"), AfterValidator(_harmless_finish)
]
HeaderName = Annotated[
    str, BeforeValidator(_lower), Field(pattern=r"^[a-z0-9!#$%&*+.^_`|~-]+$", max_length=128)
]
"""In lower case; without the quote that HTTP allows, and that would end the name in Envoy's CEL."""
UrlPath = Annotated[str, Field(pattern=r"^/[!-~]*$")]
"""A path as it stands in a request: printable ASCII, escaped where need be."""


def _known_placeholders(text: str) -> str:
    wrong = ValueError("only {seconds} can be filled in; write { as {{")
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError as error:
        raise wrong from error
    for _, name, form, conversion in fields:
        if name is not None and (name != "seconds" or form or conversion):
            raise wrong
    return text


Message = Annotated[str, Field(min_length=1), AfterValidator(_known_placeholders)]


def _relative_to_file(path: Path, info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("directory", ".")) / path


def _redis_url(url: str) -> str:
    parse_redis_url(url)
    return url


RedisUrl = Annotated[str, AfterValidator(_redis_url)]
"""Of Redis or Valkey: ``redis://…``, ``rediss://…`` or ``unix:///path``."""
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
"""It is told in a header and in metrics."""
TenantName = Annotated[str, Field(min_length=1, max_length=LONGEST_TENANT)]
PoolName = Annotated[str, Field(pattern=r"^[!-~]{1,256}$")]
"""A model's name, or ``*``; it is told in a header and names a cluster."""
FilePath = Annotated[Path, AfterValidator(_relative_to_file)]
"""A path; where it is relative, it is so to the configuration file."""


def _sqlite_relative_to_file(url: str, info: ValidationInfo) -> str:
    path = url.removeprefix("sqlite:///")
    if path in (url, "") or path.startswith(("/", ":")):
        return url
    return f"sqlite:///{_relative_to_file(Path(path), info)}"


DatabaseUrl = Annotated[
    str,
    Field(pattern=r"^(sqlite:///[^?#]+|postgresql://.+)$"),
    AfterValidator(_sqlite_relative_to_file),
]
"""``sqlite:///relative``, relative to the configuration file, ``sqlite:////absolute`` or
``postgresql://…``."""


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # not there, or no name at all
        raise ValueError(
            "write a time zone of the IANA list, such as Asia/Shanghai or UTC"
        ) from error
    return name


TimeZone = Annotated[str, AfterValidator(_known_zone)]
"""A name in the IANA time zone database."""
