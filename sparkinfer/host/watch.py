"""When the engine process has to end: its executor is gone, or nobody has wanted it for long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkinfer.host.lineage import ProcessMark, open_pidfd, pidfd_ended
from sparkinfer.host.place import Place, here


@dataclass(frozen=True, slots=True)
class End:
    """Why an engine ends, and whether its executor is gone (then nothing may stay) or only this engine is unwanted."""

    reason: str
    executor_is_gone: bool


class OwnerWatch:
    """Sees the end of a process by a pidfd, or by its start time where the kernel has no pidfd."""

    def __init__(self, owner: ProcessMark) -> None:
        self._owner = owner
        self._pidfd = open_pidfd(owner)

    @property
    def owner(self) -> ProcessMark:
        """The process that is watched."""
        return self._owner

    @property
    def kind(self) -> str:
        """Pidfd or start time."""
        return "pidfd" if self._pidfd is not None else "start time"

    def has_ended(self) -> bool:
        """Whether it is gone."""
        if self._pidfd is not None:
            return pidfd_ended(self._pidfd)
        return not self._owner.is_alive()


class LifeWatch:
    """All reasons to end, asked several times a second.

    Args:
        block_manager: Spark's folder; in local mode the JVM outlives ``spark.stop()``, but this folder does not.
        folder: the engine's own folder.
        idle_timeout_s: seconds without a client.
    """

    def __init__(self, *, block_manager: Path | None, folder: Path, idle_timeout_s: float) -> None:
        self._folders = [folder] if block_manager is None else [folder, block_manager]
        self._idle_timeout_s = idle_timeout_s
        self._owner: OwnerWatch | None = None

    def watch(self, owner: ProcessMark | None) -> None:
        """Watch this process from now on (a later worker may know the executor's JVM where the first did not)."""
        if self._owner is None and owner is not None:
            self._owner = OwnerWatch(owner)

    @property
    def has_owner(self) -> bool:
        """Whether a process is watched."""
        return self._owner is not None

    def end(self, idle_s: float) -> End | None:
        """Why to end now, or None.

        Args:
            idle_s: seconds that there has been no client.
        """
        if self._owner is not None and self._owner.has_ended():
            return End(f"its executor (pid {self._owner.owner.pid}) has ended", executor_is_gone=True)
        gone = next((folder for folder in self._folders if not folder.is_dir()), None)
        if gone is not None:
            return End(f"the folder {gone} is gone", executor_is_gone=True)
        if idle_s > self._idle_timeout_s:
            return End(f"no client for {self._idle_timeout_s:.0f} s", executor_is_gone=False)
        return None


def active_watch(place: Place | None = None) -> str:
    """Which watch would end an engine started from this process: one line for ``doctor``."""
    place = place or here()
    watches = []
    if place.owner is not None:
        watches.append(f"process {place.owner.pid} by {OwnerWatch(place.owner).kind}")
    if place.block_manager is not None:
        watches.append(f"folder {place.block_manager}")
    return ", ".join([*watches, "idle time-out"])
