"""Every command that the documentation shows is one that the command line has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from extproc.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"^\$? ?(tidegate [^#|\n]*)", re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in re.findall(r"```(?:console|sh|bash)?\n(.*?)```", page.read_text(), re.DOTALL):
            for shown in SHOWN.findall(block):
                yield page.name, shown.strip()


def parse(line: str) -> None:
    """Read a command as the command line would, options and all, and run nothing."""
    words = shlex.split(line)[1:]
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"no such command: {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    context = command.context_class(command)
    command.make_parser(context).parse_args(words)


@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_a_shown_command_can_be_read(page: str, line: str) -> None:
    parse(line)


@pytest.mark.parametrize("line", ["tidegate nonsense", "tidegate check --nonsense"])
def test_another_cannot(line: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such"):
        parse(line)
