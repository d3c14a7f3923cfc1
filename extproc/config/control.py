"""How operators reach Tidegate: the keys under ``control``.

Rules this module keeps:

* Nothing is open by default: without tokens and without client certificates there is no listener.
* Tokens do not cross a network in the clear, unless the configuration says that something else
  protects them.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from extproc.config.base import Section
from extproc.config.values import FilePath, Size


class Role(StrEnum):
    """What a caller of the control API may do; each of the first three includes those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    POD = "pod"
    """An engine that reports its load, and may do nothing else."""


class DecisionLogConfig(Section):
    """Where each verdict is written as one JSON line.

    A file that has grown over ``max_size`` is put aside as ``file.1``; ``keep`` older ones stay.
    """

    file: FilePath
    max_size: Size = 256 << 20
    keep: Annotated[int, Field(ge=0, le=1000)] = 4


Who = Annotated[str, Field(pattern=r"^[!-~]{1,128}$")]
"""A caller's name, as it stands in the audit."""


class Token(Section):
    """Whose token it is, and what it may do."""

    who: Who
    role: Role


class ControlTls(Section):
    """TLS of the control listener.

    With ``client_ca``, callers must show a certificate that it has signed. ``clients`` gives the role
    of those that show no token besides, by the certificate's alternative or common name. Commands and
    console show the certificate that TIDEGATE_CONTROL_CERTIFICATE and TIDEGATE_CONTROL_KEY name.
    """

    certificate: FilePath
    key: FilePath
    client_ca: FilePath | None = None
    clients: dict[Who, Role] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _paired(self) -> ControlTls:
        if (self.client_ca is None) != (not self.clients):
            raise ValueError("client_ca and clients go together")
        return self


class ControlConfig(Section):
    """The control API.

    ``tokens`` is a YAML file: the SHA-256 of each token in hex, and whose it is. ``plaintext`` says
    that the listener may be reached from other hosts without TLS of ours, because a mesh encrypts.
    ``directory`` is where modes, thresholds and the audit are kept.
    """

    tokens: FilePath | None = None
    tls: ControlTls | None = None
    plaintext: bool = False
    directory: FilePath = Path("tidegate-control")

    @property
    def enabled(self) -> bool:
        """Whether there is anybody who could call."""
        return self.tokens is not None or (self.tls is not None and bool(self.tls.clients))
