"""One end of a connection: whole frames of bytes over a Unix socket, with time-outs both ways, for the same user only."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from multiprocessing.connection import Connection
from pathlib import Path

#: Seconds that a frame may take once it has begun; a stopped peer is given up after it.
FRAME_TIMEOUT = 60.0
_TIMEVAL = struct.Struct("ll")
_UCRED = struct.Struct("3i")


class Channel:
    """Sends and receives frames. A hang-up, and a peer that takes or gives nothing in time, raise ConnectionError.

    Any thread may send and hang up; one receives, and closes in the end. A descriptor that is given back may be another
    client's a moment later, so nobody closes one while another thread still writes to it.
    """

    def __init__(self, connection: Connection, *, frame_timeout: float = FRAME_TIMEOUT) -> None:
        self._connection = connection
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._sending = threading.Lock()
        self._shutting = threading.Lock()
        timeout = _TIMEVAL.pack(int(frame_timeout), int(frame_timeout % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, timeout)

    @classmethod
    def connect(cls, path: Path) -> Channel:
        """Connect to a listening socket.

        Raises:
            ConnectionError: nobody listens there, or so many wait already that nobody can be let in.
        """
        with socket.socket(socket.AF_UNIX) as knocking:
            try:
                knocking.settimeout(FRAME_TIMEOUT)
                knocking.connect(str(path))
            except OSError as error:
                raise ConnectionError(str(error)) from error
            knocking.setblocking(True)
            return cls(Connection(knocking.detach()))

    @property
    def peer_uid(self) -> int:
        """The user on the other end, as the kernel says."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(credentials)[1])

    def send(self, frame: bytes) -> None:
        """Send one frame."""
        try:
            with self._sending:
                self._connection.send_bytes(frame)
        except (OSError, ValueError) as error:
            raise ConnectionError(str(error)) from error

    def receive(self, timeout: float) -> bytes | None:
        """The next frame, or None where none begins within ``timeout`` seconds."""
        try:
            return self._connection.recv_bytes() if self._connection.poll(timeout) else None
        except (OSError, EOFError, ValueError) as error:
            raise ConnectionError(str(error)) from error

    def shut(self) -> None:
        """Hang up; whoever waits in another thread gets a ConnectionError. Then that thread closes."""
        with self._shutting, contextlib.suppress(OSError):  # the other end was faster, or it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptors back."""
        self.shut()  # a thread that waits in send() ends by it
        with self._sending:
            self._connection.close()
        with self._shutting:
            self._socket.close()
