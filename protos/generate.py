"""Generates `extproc/control/pb` from the files beside this one: ``make protos``.

Rules this module keeps:

* The same files give the same bytes: compiler and plugins are pinned in the dev group, and a test
  generates anew and compares.
* Protobuf's Python code imports by the path of the .proto file; here it lies in a package of ours.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).parent
PACKAGE = "extproc.control.pb"
TARGET = PROTOS.parent.joinpath(*PACKAGE.split("."))
_HEAD = '"""Generated from `protos/tidegate/v1` by `make protos`."""\n'


def generate(target: Path) -> None:
    """Write the package into an existing empty folder.

    Raises:
        RuntimeError: the compiler refused; it has told why.
    """
    with tempfile.TemporaryDirectory() as folder:
        sources = sorted(path.relative_to(PROTOS) for path in PROTOS.glob("tidegate/v1/*.proto"))
        plugins = ("python", "grpc_python", "mypy", "mypy_grpc")
        outputs = [f"--{plugin}_out={folder}" for plugin in plugins]
        # They lie beside the interpreter, which in a virtual environment need not be on the path.
        beside = Path(sys.executable).parent
        found = [
            f"--plugin=protoc-gen-{each}={beside / f'protoc-gen-{each}'}" for each in plugins[2:]
        ]
        google = Path(protoc.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{PROTOS}", f"-I{google}", *found, *outputs]
        if protoc.main([*arguments, *map(str, sources)]) != 0:
            raise RuntimeError("protoc refused the files; see above")
        for made in sorted(Path(folder, "tidegate", "v1").iterdir()):
            text = made.read_text(encoding="utf-8")
            text = text.replace("from tidegate.v1 import", f"from {PACKAGE} import")
            (target / made.name).write_text(text, encoding="utf-8")
    (target / "__init__.py").write_text(_HEAD, encoding="utf-8")


if __name__ == "__main__":
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    generate(TARGET)
