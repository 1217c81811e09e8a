"""A folder of small whole files on a local disk, a mounted Volume or an object store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class SegmentFolder(Protocol):
    """What segments need of a place; each call raises OSError where the place does not do it."""

    def exists(self) -> bool:
        """Whether the folder can be written into from here."""

    def write(self, name: str, content: bytes) -> None:
        """Put a file down whole, over an older one of its name; it is on the disk when this returns."""

    def files(self) -> dict[str, int]:
        """Names of the files that are whole, with their sizes in bytes."""

    def read(self, name: str) -> bytes:
        """A file's content."""


class LocalFolder:
    """A folder of this machine; implements :class:`SegmentFolder`. Never makes the folder: a job that is done has removed it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def exists(self) -> bool:
        """See :meth:`SegmentFolder.exists`."""
        return self._path.is_dir()

    def write(self, name: str, content: bytes) -> None:
        """See :meth:`SegmentFolder.write`; a reader never sees half of it."""
        fresh = self._path / f".{name}.new"
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path / name)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise

    def files(self) -> dict[str, int]:
        """See :meth:`SegmentFolder.files`."""
        return {path.name: path.stat().st_size for path in self._path.glob("[!.]*")}

    def read(self, name: str) -> bytes:
        """See :meth:`SegmentFolder.read`."""
        return (self._path / name).read_bytes()


class RemoteFolder:
    """A prefix of an object store; implements :class:`SegmentFolder`. An object appears whole when its stream is closed."""

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self._fs = file_system
        self._path = path

    def exists(self) -> bool:
        """See :meth:`SegmentFolder.exists`; a store has no folders, so the first write tells."""
        return True

    def write(self, name: str, content: bytes) -> None:
        """See :meth:`SegmentFolder.write`."""
        with self._fs.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(content)

    def files(self) -> dict[str, int]:
        """See :meth:`SegmentFolder.files`."""
        from pyarrow.fs import FileSelector

        found = self._fs.get_file_info(FileSelector(self._path, allow_not_found=True))
        return {info.base_name: info.size for info in found if info.is_file}

    def read(self, name: str) -> bytes:
        """See :meth:`SegmentFolder.read`."""
        with self._fs.open_input_stream(f"{self._path}/{name}") as stream:
            return bytes(stream.read())


def open_folder(uri: str) -> SegmentFolder:
    """The folder at an absolute path or a URI that Arrow knows.

    Raises:
        OSError: the store cannot be reached.
        ValueError: no such kind of store.
    """
    if uri.startswith("/"):
        return LocalFolder(Path(uri))
    from pyarrow.fs import FileSystem

    file_system, path = FileSystem.from_uri(uri)
    return RemoteFolder(file_system, path)
