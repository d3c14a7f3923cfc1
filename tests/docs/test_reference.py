"""The reference pages say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


@pytest.mark.parametrize("page", ["configuration.md", "reasons.md", "metrics.md"])
def test_a_reference_is_what_would_be_generated(page: str) -> None:
    written = (DOCS / "reference" / page).read_text(encoding="utf-8")
    assert written == generated()[page], "run `make docs`"


def test_keys_reasons_and_metrics_are_told() -> None:
    pages = generated()
    assert "| `max_concurrency` | a whole number, ≥ 1 | `512` |" in pages["configuration.md"]
    assert "| `idle_after` | a number, > 0 | `600.0` |" in pages["configuration.md"]
    assert "| `merge_wait` | a number, ≥ 0, ≤ 3000 | `120.0` |" in pages["configuration.md"]
    assert "## `pools.<name>.scrape`" in pages["configuration.md"]
    assert "| `rate_limited` | rate | error 429 `rate_limit_error` |" in pages["reasons.md"]
    assert "| `tidegate_kv_bias_tokens` | gauge | `pool`, `endpoint` |" in pages["metrics.md"]
