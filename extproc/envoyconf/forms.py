"""The files of every form, by name: what `tidegate envoy` writes and ``envoy/`` holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

from extproc.config import Config, EndpointsError, parse_endpoints
from extproc.envoyconf.bootstrap import bootstrap
from extproc.envoyconf.clusters import eds_file
from extproc.envoyconf.errors import EndpointsFileError
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


def files(config: Config, form: Form | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file of a form, or of all forms.

    Raises:
        GenerationError: there is no pool, or a pool's file of endpoints cannot be used.
    """
    for each in [form] if form else Form:
        if each is not Form.EDS:
            yield f"{each}.yaml", _WRITERS[each](config)
            continue
        for pool, settings in config.pools.items():
            if settings.endpoints.file is not None:
                yield eds_file(pool), eds(pool, _listed(pool, settings.endpoints.file))


def _listed(pool: str, file: Path) -> tuple[str, ...]:
    try:
        return parse_endpoints(file.read_bytes())
    except OSError as error:
        raise EndpointsFileError(pool, file, str(error.strerror)) from error
    except EndpointsError as error:
        raise EndpointsFileError(pool, file, str(error)) from error


def write(config: Config, directory: Path, form: Form | None = None) -> None:
    """Write the files of a form, or of all forms, to a directory.

    Envoy may be watching them: each is renamed into place, so that it never reads half of one.

    Raises:
        GenerationError: the files cannot be written from this configuration; none was.
        OSError: the directory cannot be written to.
    """
    texts = dict(files(config, form))
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        new = directory / f".{name}.new"
        new.write_text(text, encoding="utf-8")
        new.replace(directory / name)
