"""The texts of the pages: none is missing, and both languages say the same things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import extproc.console
from extproc.control.pb import modes_pb2
from extproc.core.reasons import REASONS

STATIC = Path(extproc.console.__file__).parent / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
TEXT = r'"(?:[^"\\]|\\.)*"'
ENTRY = re.compile(rf'^  "([\w.]+)": \[({TEXT}),\s*({TEXT})\],$', re.MULTILINE)
WORDS = {key: (en, zh) for key, en, zh in ENTRY.findall((STATIC / "words.js").read_text("utf-8"))}


def test_every_entry_is_read_here() -> None:
    lines = (STATIC / "words.js").read_text("utf-8").splitlines()
    assert len(WORDS) == sum(line.startswith('  "') for line in lines)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda each: str(each.stem))
def test_no_page_uses_a_text_that_is_missing(script: Path) -> None:
    used = set(re.findall(r'\bt\("([\w.]+)"', script.read_text("utf-8")))
    assert used - WORDS.keys() == set()


def test_every_reason_and_mode_has_its_words() -> None:
    modes = [name.removeprefix("MODE_") for name in modes_pb2.Mode.keys()[1:]]
    wanted = {f"reason.{each}" for each in REASONS}
    wanted |= {f"mode.{each}" for each in modes} | {f"mode.{each}.effect" for each in modes}
    assert wanted - WORDS.keys() == set()


def test_both_languages_fill_in_the_same_values() -> None:
    def places(text: str) -> set[str]:
        return set(re.findall(r"\{(\w+)\}", text))

    for key, (en, zh) in WORDS.items():
        assert places(en) == places(zh), key


def test_every_file_of_the_pages_is_ours_or_has_its_licence() -> None:
    vendored = {each.name for each in (STATIC / "vendor").iterdir()}
    assert vendored == {"lit-html.js", "lit-html.LICENSE"}
