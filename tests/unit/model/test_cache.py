"""The user's cache: whole folders or none."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from sparkinfer.errors import DiskFull, DownloadFailed, PermissionDenied
from sparkinfer.model import cache


def test_the_places_in_their_order(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARKINFER_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_root() == Path("/own")
    monkeypatch.delenv("SPARKINFER_CACHE")
    assert cache.cache_root() == Path("/xdg/sparkinfer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache" / "sparkinfer"
    monkeypatch.setenv("HOME", "/nonexistent")
    assert cache.cache_root().name.startswith("sparkinfer-")


def test_many_threads_build_once_and_never_see_a_part(tmp_path) -> None:
    target, builds, seen = tmp_path / "models" / "m", [], []

    def build(folder: Path) -> None:
        builds.append(folder)
        for name in ("a", "b", "c"):
            assert not target.exists()
            (folder / name).write_text(name)

    def want() -> None:
        got = cache.build_once(target, build)
        seen.append(sorted(p.name for p in got.iterdir()))

    threads = [threading.Thread(target=want) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert seen == [["a", "b", "c"]] * 6


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path) -> None:
    target = tmp_path / "m"

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise DownloadFailed("the network broke.")

    with pytest.raises(DownloadFailed):
        cache.build_once(target, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["m.lock"]
    assert (cache.build_once(target, lambda folder: (folder / "whole").write_text("x")) / "whole").exists()


def test_what_a_killed_builder_left_is_cleared_away(tmp_path) -> None:
    left = tmp_path / "m.part-dead"
    left.mkdir()
    (left / "half").write_text("x")
    cache.build_once(tmp_path / "m", lambda folder: None)
    assert not left.exists()


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EACCES, PermissionDenied)])
def test_the_disks_refusals_name_the_setting(tmp_path, number, error) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(number, "refused")

    with pytest.raises(error, match="SPARKINFER_CACHE"):
        cache.build_once(tmp_path / "m", refuse)
