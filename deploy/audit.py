"""``make audit``: known vulnerabilities in what an installation of Tidegate brings along.

Rules kept here:

- Looked at is what is installed here, down to the last dependency of every extra, in its version.
- What could not be looked up is not taken for safe: it is named, and the exit code says so.

Exit codes: 0 nothing known; 1 something known; 3 not everything could be looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "tidegate"
EXTRAS = frozenset(distribution(DISTRIBUTION).metadata.get_all("Provides-Extra") or ())


def dependencies(
    name: str = DISTRIBUTION, extras: frozenset[str] = EXTRAS
) -> dict[str, Distribution]:
    """Return what is installed for a distribution and its extras, by canonical name, itself excluded.

    Raises:
        PackageNotFoundError: something that it needs is not installed.
    """
    found: dict[str, Distribution] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), extras)]
    while waiting:
        each = waiting.pop()
        if each in visited:
            continue
        visited.add(each)
        here, wanted = each
        found[here] = distribution(here)
        for text in found[here].requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in {"", *wanted}):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    del found[canonicalize_name(name)]
    return found


def audit(pinned: list[str]) -> tuple[list[str], list[str]]:
    """Return the vulnerabilities known of these ``name==version``, and what could not be looked up."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as requirements:
        requirements.write("\n".join(pinned))
        requirements.flush()
        command = [sys.executable, "-m", "pip_audit", "--requirement", requirements.name]
        command += ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    try:
        audited = json.loads(done.stdout)["dependencies"]
    except ValueError:  # it could not even begin
        return [], pinned
    known = [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in {flaw['fix_versions'] or 'none'}"
        for each in audited
        for flaw in each.get("vulns", ())
    ]
    return known, [each["name"] for each in audited if "skip_reason" in each]


def main() -> int:
    """Print what is known, and return the exit code."""
    try:
        pinned = [f"{name}=={each.version}" for name, each in sorted(dependencies().items())]
    except PackageNotFoundError as missing:
        print(f"audit: {missing.name} is not installed: `make audit` installs every extra")
        return 3
    known, skipped = audit(pinned)
    for each in known:
        print(f"audit: {each}")
    if skipped:
        print(
            f"audit: the advisories could not be read for {len(skipped)} of {len(pinned)} packages"
        )
    print(f"audit: {len(known)} known vulnerabilities in {len(pinned) - len(skipped)} packages")
    return 1 if known else 3 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
