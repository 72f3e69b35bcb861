"""Folders of this repository that tests read."""

import pathlib

#: The root of the repository.
ROOT = pathlib.Path(__file__).parents[3]
#: The programs that tests start, each a process of its own.
PROGRAMS = ROOT / "python" / "tests" / "programs"
