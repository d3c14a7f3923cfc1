"""Builds what the real engines need, once: an environment with vLLM, and a tiny model.

- Both lie in ``.vllm`` at the project's root, in folders named after what they are made from: a
  changed recipe makes a new folder, an unchanged one is used again. Old ones stay, since servers
  of another branch may run from them; ``make clean`` removes all.
- A folder bears its name only when it is whole; an interrupted build is thrown away by the next.
- One build at a time, whoever asks.
- The folder can be moved: programs in it are called through its interpreter, never as scripts.

``python -m tests.vllm.environment`` builds it in advance.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".vllm"
REQUIREMENTS = HERE / "requirements.txt"
MAKE_MODEL = HERE / "make_model.py"


class BuildError(Exception):
    """A step of the build failed; the text holds the command and the end of its log."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a vLLM server is started from."""

    python: Path
    """The interpreter that has vLLM."""
    model: Path
    """The model's folder."""


def environment(home: Path = HOME) -> Environment:
    """Return the environment in ``home``, building first what is missing.

    Building takes about a minute, 2.5 GB of disk and a package index.

    Raises:
        BuildError: a command failed.
    """
    env_key = _key(sys.version.encode(), REQUIREMENTS.read_bytes())
    model_key = _key(env_key.encode(), MAKE_MODEL.read_bytes())
    with _alone(home):
        env = made_once(home / f"env-{env_key}", _make_environment)
        python = env / "bin" / "python"
        model = made_once(
            home / f"model-{model_key}",
            lambda folder: _run([python, "-I", MAKE_MODEL, folder], _log(folder)),
        )
    return Environment(python, model)


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``, letting ``make`` fill it if it does not exist yet.

    ``make`` works in a folder of another name, which is renamed when ``make`` returns.
    """
    if folder.exists():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    make(partial)
    return partial.rename(folder)


def tail(log: Path, lines: int = 100) -> str:
    """Return the last lines of a log file."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def _make_environment(folder: Path) -> None:
    log = _log(folder)
    python = folder / "bin" / "python"
    _run([sys.executable, "-m", "venv", folder], log)
    _run([python, "-m", "pip", "install", "--no-deps", "-r", REQUIREMENTS], log)


def _log(folder: Path) -> Path:
    return folder.parent / "logs" / f"{folder.name.partition('-')[0]}.log"


def _run(command: Sequence[str | Path], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        line = " ".join(map(str, command))
        raise BuildError(f"exit {done.returncode}: {line}\nThe end of {log}:\n{tail(log)}")


def _key(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Build, and say what is done and how long it took."""
    sys.stdout.write(f"vLLM environment in {HOME}: ")
    sys.stdout.flush()
    start = time.monotonic()
    try:
        environment()
    except BuildError as error:
        sys.exit(f"failed\n{error}")
    sys.stdout.write(f"ready after {time.monotonic() - start:.0f} s\n")


if __name__ == "__main__":
    main()
