"""``python -m extproc`` is the ``tidegate`` command."""

from extproc.cli import main

main()
