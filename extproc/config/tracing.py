"""The section ``tracing:``. Without it nothing is traced; the context of callers passes all the same."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from extproc.config.base import Section
from extproc.config.values import Ratio


class TracingConfig(Section):
    """Where spans are sent, as OTLP in JSON over HTTP; needs ``pip install 'tidegate[tracing]'``.

    What callers have sampled is sampled; of calls without a context, the share ``ratio`` is.
    """

    endpoint: Annotated[str, Field(pattern=r"^https?://[!-~]+$")] = (
        "http://127.0.0.1:4318/v1/traces"
    )
    ratio: Ratio = 0.01
