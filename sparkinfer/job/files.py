"""Small files and folders on any file system that Arrow knows: a local disk, a mounted Volume, an object store."""

from __future__ import annotations

import errno
import json
import logging
import re
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOG = logging.getLogger(__name__)
_REMOVALS = 3
_REMOVAL_PAUSE_S = 0.1


def file_system(path: str) -> tuple[FileSystem, str]:
    """Arrow's file system for a path or URI, and the path inside it."""
    from pyarrow.fs import FileSystem

    found: tuple[FileSystem, str] = FileSystem.from_uri(arrow_uri(path))
    return found


def arrow_uri(path: str) -> str:
    """A path or URI of Spark as Arrow takes it; ``dbfs:`` is its mount."""
    plain = re.sub(r"^dbfs:/+(?=Volumes/)", "/", path)
    plain = re.sub(r"^dbfs:/+", "/dbfs/", plain)
    plain = re.sub(r"^file:/+", "/", plain)
    return re.sub(r"^s3[an]:", "s3:", plain)


def is_missing(error: OSError) -> bool:
    """Whether a file or folder is not there."""
    return isinstance(error, FileNotFoundError) or error.errno == errno.ENOENT


def write(fs: FileSystem, path: str, value: dict[str, Any]) -> None:
    """Put a small JSON object down whole, over an older one."""
    with fs.open_output_stream(f"{path}.new") as stream:
        stream.write(json.dumps(value).encode())
    fs.move(f"{path}.new", path)


def read(fs: FileSystem, path: str) -> dict[str, Any] | None:
    """A small JSON object, or None where it is not there (any more) or not whole."""
    try:
        with fs.open_input_stream(path) as stream:
            value = json.loads(stream.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def listing(fs: FileSystem, folder: str) -> list[Any]:
    """What lies in a folder; nothing where there is none."""
    from pyarrow.fs import FileSelector

    return list(fs.get_file_info(FileSelector(folder, allow_not_found=True)))


def files(fs: FileSystem, folder: str) -> list[str]:
    """Paths of all files in and below a folder."""
    from pyarrow.fs import FileSelector, FileType

    selected = fs.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
    return [info.path for info in selected if info.type == FileType.File]


def remove(fs: FileSystem, folder: str) -> None:
    """Remove a folder with what is in it; a warning where that does not work."""
    for attempt in range(_REMOVALS):
        try:
            fs.delete_dir(folder)
        except OSError as error:
            if is_missing(error):
                return
            if attempt == _REMOVALS - 1:
                _LOG.warning("The folder %s could not be removed: %s", folder, error)
            time.sleep(_REMOVAL_PAUSE_S)  # an engine may just have put a segment or its counters down in there
        else:
            return
