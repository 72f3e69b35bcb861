"""Refusal of SQLite connections to a file that an engine or client of this process has open.

The engine has an SQLite library of its own. If Python's library opens the same file in the same process, it
takes itself for the only user. It shortens the memory that both share, and the process ends with SIGBUS. When
it closes the file, it releases the locks of the engine (https://www.sqlite.org/howtocorrupt.html, 2.2.1).
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._runtime.engine_interface import Host

#: The engines and clients that have opened an SQLite file.
_holders: Final[weakref.WeakSet[Host]] = weakref.WeakSet()
_installing: Final = threading.Lock()
_is_installed = False


def reject_open_files(files: Iterable[str]) -> None:
    """Rejects the files that an engine or client of this process has open.

    Args:
        files: The paths of the files.

    Raises:
        InvalidArgument: A file is open.
    """
    existing = [file for file in files if file and os.path.exists(file)]
    if not existing:
        return
    for engine in list(_holders):
        # the file counts as open also while the engine is being closed
        held = engine.file if engine.needs_shutdown else None
        if held is None or not os.path.exists(held):
            continue
        if any(os.path.samefile(file, held) for file in existing):
            raise InvalidArgument(
                f"an engine or client of this process has the same file open, {held}: engines have an SQLite "
                "library of their own, and two such libraries in one process release each other's locks and "
                "shorten each other's memory; open the file in another process, or close the engine first"
            )


def guard_file(engine: Host) -> None:
    """Rejects connections of Python's `sqlite3` to the file of an engine, until the engine has shut down."""
    global _is_installed
    _holders.add(engine)
    with _installing:
        if not _is_installed:
            sys.addaudithook(_reject_connection)
            _is_installed = True


def _reject_connection(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "sqlite3.connect" and _holders:
        reject_open_files(_files_of(arguments[0]))


def _files_of(database: Any) -> list[str]:
    """Returns the paths that `sqlite3.connect` may open for a database; none for other values."""
    try:
        path = os.fsdecode(database)
    except TypeError:
        return []
    return [path, unquote(urlsplit(path).path)] if path.startswith("file:") else [path]


__all__ = ["guard_file", "reject_open_files"]
