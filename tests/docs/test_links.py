"""Every link of a page to a file of this repository, and to a heading in it, leads there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in sorted(ROOT.rglob("*.md"))
    if not {".venv", ".vllm", ".peers", "node_modules"} & set(page.relative_to(ROOT).parts)
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    plain = (re.sub(r"[^\w\- ]", "", each.lower()) for each in HEADING.findall(text))
    return {each.replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []
