"""The files of every form, by name: what `tidegate envoy` writes and ``envoy/`` holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import ValidationError

from extproc.config import Config, Endpoints
from extproc.envoyconf.bootstrap import bootstrap
from extproc.envoyconf.clusters import eds_file
from extproc.envoyconf.gateway import gateway
from extproc.envoyconf.include import cds, ecds, eds, example
from extproc.envoyconf.istio import istio


class Form(StrEnum):
    """What the configuration is written for; also the name of its file."""

    BOOTSTRAP = "bootstrap"
    ECDS = "ecds"
    CDS = "cds"
    EDS = "eds"
    INCLUDE = "include"
    ISTIO = "istio"
    GATEWAY = "gateway"


_WRITERS: dict[Form, Callable[[Config], str]] = {
    Form.BOOTSTRAP: bootstrap,
    Form.ECDS: ecds,
    Form.CDS: cds,
    Form.INCLUDE: example,
    Form.ISTIO: istio,
    Form.GATEWAY: gateway,
}


class EndpointsFileError(ValueError):
    """The file that lists a pool's endpoints cannot be used."""


def files(config: Config, form: Form | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file of a form, or of all forms.

    Raises:
        NoPoolError: the configuration has no pool.
        EndpointsFileError: the file that lists a pool's endpoints cannot be used.
    """
    for each in [form] if form else Form:
        if each is not Form.EDS:
            yield f"{each}.yaml", _WRITERS[each](config)
            continue
        for pool, settings in config.pools.items():
            if settings.endpoints.file is not None:
                yield eds_file(pool), eds(pool, _listed(pool, settings.endpoints.file))


def _listed(pool: str, file: Path) -> tuple[str, ...]:
    where = f"pools.{pool}.endpoints.file = {file}"
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise EndpointsFileError(f"{where}: {error}") from error
    if isinstance(content, dict):
        content = content.get("endpoints")
    try:
        return Endpoints.model_validate({"static": content}).static or ()
    except ValidationError as error:
        raise EndpointsFileError(f"{where}: write a list of host:port") from error
