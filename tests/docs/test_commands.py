"""Every command that the documentation shows is accounted for.

Those of ``tidegate`` are read by its own command line; all others are run by the test or the stage of CI
that is named here, or cannot be run here and say why.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from extproc.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "SECURITY.md",
    *(
        page
        for folder in ("docs", "compose", "deploy", "envoy")
        for page in ROOT.glob(f"{folder}/**/*.md")
    ),
]
NO_DOCKER = "tests/compose/test_services.py"
"""There is no Docker engine: the file is checked by its schema, and its services run as processes."""
RUN_BY = {
    "make run": "tests/e2e/test_command.py",
    "make load": "tests/e2e/test_command.py",
    "make test": ".ci/run",
    "make test-vllm": ".ci/run",
    "make soak": ".ci/run",
    "make lint": ".ci/run",
    "make fuzz": "tests/openai/streams/test_fuzz.py",  # the same with fewer examples
    "make bench": "tests/bench/test_stand.py",
    "make drill": "tests/sim/drill/test_drill_command.py",
    "docker compose": NO_DOCKER,
    "COMPOSE_PROFILES=vllm docker": NO_DOCKER,
    "docker build": NO_DOCKER,
    "kubectl apply": "tests/deploy/test_kubernetes.py",  # renders and validates what it would apply
    "pkill -HUP": "tests/e2e/test_reload.py",
    "curl http://127.0.0.1:8080/v1/chat/completions": "tests/e2e/test_clients.py",
    'echo "$(printf': "tests/e2e/test_identity.py",
}
MODULE = re.compile(r"python -m ((?:bench|tests)[\w.]*)")
BLOCK = re.compile(r"```(?:console|sh|bash)\n(.*?)```", re.DOTALL)
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


def others() -> Iterator[tuple[str, str]]:
    """Yield the commands of other programs, with the page that shows them."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for line in block.splitlines():
                command = line.partition("#")[0].strip().removeprefix("$ ")
                if line.startswith("$ ") and not command.startswith("tidegate "):
                    yield str(page.relative_to(ROOT)), command


@pytest.mark.parametrize(("page", "command"), list(others()))
def test_another_programs_command_is_run_by_somebody(page: str, command: str) -> None:
    runs = [test for start, test in RUN_BY.items() if f"{command} ".startswith(f"{start} ")]
    assert runs, f"who runs this? {command}"
    assert (ROOT / runs[0]).exists()
    if command.startswith("make "):
        assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "module", sorted({name for page in PAGES for name in MODULE.findall(page.read_text())})
)
def test_a_shown_module_can_be_run(module: str) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    main = (
        importlib.util.find_spec(f"{module}.__main__")
        if found.submodule_search_locations
        else found
    )
    assert main is not None
    assert main.origin is not None
    assert "__main__" in Path(main.origin).read_text()
