"""The default values that pages name are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.config import Config, parse

ROOT = Path(__file__).parents[2]


def said(config: Config) -> dict[str, list[str]]:
    """Return what each page must say, made of the defaults themselves."""
    classes, scrape = config.classes, config.pools["m"].scrape
    first, second, third = classes["P0"], classes["P1"], classes["P2"]
    marks = [each.free_watermark for each in (second, third)]
    row = "| {} % | {} % |"
    rows = [row.format(round(each.close * 100), round(each.open * 100)) for each in marks]
    return {
        "docs/concepts.md": [
            f"`max_wait` ({first.max_wait:g} s)",
            f"/metrics, every {scrape.interval:g} s",
            f"`stale_after` ({scrape.stale_after:g} s)",
            f"`unknown_after` ({scrape.unknown_after:g} s)",
            f"`finish_reason: {config.fallback.finish_reason}`",
        ],
        "docs/faq.md": [
            f"for {config.tickets.window:g} s (`tickets.window`)",
            f"`finish_reason` (`{config.fallback.finish_reason}`)",
        ],
        "docs/zh/faq.md": [
            f"{config.tickets.window:g} 秒（`tickets.window`）",
            f"`finish_reason`（`{config.fallback.finish_reason}`）",
        ],
        "README.md": [
            *rows,
            f"up to {first.max_wait:g} s",
            f"{first.max_tokens} tokens",
            f"{round(third.concurrency * 100)} % |",
        ],
        "README.zh-CN.md": [*rows, f"最多 {first.max_wait:g} 秒"],
    }


DEFAULTS = parse("pools: {m: {endpoints: {static: ['127.0.0.1:8000']}}}")


@pytest.mark.parametrize("page", list(said(DEFAULTS)))
def test_a_page_names_the_defaults(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [each for each in said(DEFAULTS)[page] if each not in text] == []
