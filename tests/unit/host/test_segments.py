"""Finished rows put down beside the job: soon, whole, and never at the job's expense."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import ArrowInvalid
from pyarrow.fs import LocalFileSystem

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.fake import FakeEngine
from sparkinfer.host.memo import Memo
from sparkinfer.host.place import Place
from sparkinfer.host.segment_folder import LocalFolder, RemoteFolder, SegmentFolder, open_folder
from sparkinfer.host.segments import SEGMENT_BYTES, Segments, read_segment
from sparkinfer.schema import result_fields
from sparkinfer.types import Completion, FinishReason, Usage
from tests.support.engines import TASK, connect, drain, engine_pid, events, eventually, fake_spec, row
from tests.support.services import ask, service_of

CONFIG = TASK.config_hash
ANSWER = Completion(
    row=7,
    input_hash="ab",
    result="grüß\n\u2028 😀",
    finish_reason=FinishReason.LENGTH,
    warnings=("TRUNCATED_INPUT",),
    usage=Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=2),
    attempts=2,
    engine="fake",
    inferred_at=1_700_000_000.25,
    details={"a": "b"},
    logprobs=(-0.5,),
)


def segments_of(name: str) -> Segments:
    return Segments(name, fake_spec().model, flush_s=0.02)


def written(folder: Path) -> list[Completion]:
    return [c for path in sorted(folder.glob("*.json")) for c in read_segment(path.read_bytes(), CONFIG)]


def test_a_store_that_hangs_while_it_is_opened_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, goes_on = segments_of("one"), threading.Event()

    def slow(uri: str) -> SegmentFolder:
        if "dead" in uri:
            goes_on.wait(60)
        return open_folder(uri)

    monkeypatch.setattr("sparkinfer.host.segments.open_folder", slow)
    stuck = threading.Thread(target=segments.enter, args=(str(tmp_path / "dead"),), daemon=True)
    stuck.start()
    try:
        other = tmp_path / "alive"
        other.mkdir()
        works = threading.Thread(target=_enter_and_add, args=(segments, str(other)), daemon=True)
        works.start()
        works.join(10)
        assert not works.is_alive()
    finally:
        goes_on.set()
        stuck.join()
    segments.flush()
    assert len(written(other)) == 1


def _enter_and_add(segments: Segments, uri: str) -> None:
    segments.enter(uri)
    segments.add(uri, CONFIG, [ANSWER])


def test_a_client_whose_store_hangs_does_not_take_the_engine_for_hung(place: Place, log: Path, tmp_path: Path) -> None:
    """A reader of a named pipe waits until somebody writes: so does the session that looks for answers of others there."""
    dead = tmp_path / "segments"
    dead.mkdir()
    os.mkfifo(dead / "another-engine.json")
    spec = fake_spec(log=log, settings=EngineSettings(batch_timeout_ms=0, stall_timeout_s=2))
    first = connect(spec)
    pid = engine_pid(place)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect, spec, replace(TASK, segments_dir=str(dead)))
        time.sleep(4)  # longer than an engine may be silent
        first.submit([row(1)])
        drain(first, 1)
        second = waiting.result(timeout=60)  # signs of life were an answer
        os.close(os.open(dead / "another-engine.json", os.O_RDWR | os.O_NONBLOCK))
        second.submit([row(2)])
        drain(second, 1)
    assert engine_pid(place) == pid
    assert len(events(log, "load")) == 1
    first.close()
    second.close()


def test_what_was_written_is_read_back_but_for_the_row_number(tmp_path: Path) -> None:
    segments = segments_of("one")
    segments.enter(str(tmp_path))
    failed = replace(
        ANSWER, input_hash="cd", result=None, error_code="POISON_ROW", error_message="It died.", logprobs=None
    )
    segments.add(str(tmp_path), CONFIG, [ANSWER, failed])
    segments.flush()
    assert written(tmp_path) == [replace(ANSWER, row=0), replace(failed, row=0)]
    (path,) = tmp_path.iterdir()
    first = json.loads(path.read_text("utf-8").split("\n")[0])
    assert (first["model_name"], first["config_hash"]) == ("fake", CONFIG)
    assert list(read_segment(path.read_bytes(), "another config")) == []


def test_a_line_has_the_columns_of_the_result_table(tmp_path: Path) -> None:
    segments = segments_of("one")
    segments.enter(str(tmp_path))
    segments.add(str(tmp_path), CONFIG, [ANSWER])
    segments.flush()
    (path,) = tmp_path.iterdir()
    line = json.loads(path.read_text("utf-8"))
    assert set(line) == {field.column for field in result_fields(logprobs=True)} | {"whole"}
    assert list(line)[-1] == "whole", "what is torn must lack it"


def test_rows_are_there_without_anybody_asking_and_long_segments_are_left_alone(tmp_path: Path) -> None:
    segments = segments_of("one")
    segments.start()
    segments.enter(str(tmp_path))
    long = replace(ANSWER, result="x" * (SEGMENT_BYTES // 2))
    for number in range(5):
        segments.add(str(tmp_path), CONFIG, [replace(long, input_hash=str(number))])
        eventually(lambda seen=number: len(written(tmp_path)) == seen + 1)  # type: ignore[misc]
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.json"))]
    assert len(sizes) == 3
    assert max(sizes) < 1.2 * SEGMENT_BYTES
    segments.close()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_end_costs_its_own_row_only(tmp_path: Path, cut: int) -> None:
    segments = segments_of("one")
    segments.enter(str(tmp_path))
    segments.add(str(tmp_path), CONFIG, [ANSWER, replace(ANSWER, input_hash="cd")])
    segments.flush()
    (path,) = tmp_path.iterdir()
    assert [c.input_hash for c in read_segment(path.read_bytes()[:-cut], CONFIG)] in (
        ["ab"],
        ["ab", "cd"][: 1 + (cut == 1)],
    )


@pytest.mark.parametrize("kind", [OSError, ArrowInvalid, RuntimeError])
def test_a_folder_that_cannot_be_written_costs_a_warning_and_is_tried_again(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    num_tries = 0

    def is_full(*_: object) -> None:
        nonlocal num_tries
        num_tries += 1
        raise kind("No space left")

    segments = segments_of("one")
    segments.start()
    segments.enter(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "write", is_full)
        for number in range(3):
            seen = num_tries
            segments.add(str(tmp_path), CONFIG, [replace(ANSWER, input_hash=str(number))])
            eventually(lambda seen=seen: num_tries > seen)  # type: ignore[misc]
    assert caplog.text.count("No space left") == 1
    segments.add(str(tmp_path), CONFIG, [replace(ANSWER, input_hash="3")])
    eventually(lambda: [c.input_hash for c in written(tmp_path)] == ["0", "1", "2", "3"])
    segments.close()


def test_a_job_that_is_done_gets_nothing_back_and_nobody_complains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "segments"
    folder.mkdir()
    segments = segments_of("one")
    segments.enter(str(folder))
    segments.add(str(folder), CONFIG, [ANSWER])
    shutil.rmtree(folder)
    segments.flush()
    assert not folder.exists()
    assert caplog.text == ""


def test_a_folder_that_this_executor_does_not_see_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segments_of("one").enter(str(tmp_path / "elsewhere"))
    assert "name staging=" in caplog.text


def test_after_its_last_client_a_folder_is_forgotten_once_it_is_written(tmp_path: Path) -> None:
    segments = segments_of("one")
    segments.enter(str(tmp_path))
    segments.add(str(tmp_path), CONFIG, [ANSWER])
    segments.leave(str(tmp_path))
    segments.flush()
    assert len(written(tmp_path)) == 1
    assert segments._open == {}


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_folder_holds_whole_files(kind: str, tmp_path: Path) -> None:
    folder: SegmentFolder = (
        open_folder(str(tmp_path)) if kind == "local" else RemoteFolder(LocalFileSystem(), str(tmp_path))
    )
    assert folder.exists()
    folder.write("a.json", b"one")
    folder.write("a.json", b"two!")
    (tmp_path / ".b.json.new").write_bytes(b"half")
    assert {name: size for name, size in folder.files().items() if not name.startswith(".")} == {"a.json": 4}
    assert folder.read("a.json") == b"two!"


def test_uris_of_stores_are_opened_by_arrow(tmp_path: Path) -> None:
    assert isinstance(open_folder(f"file://{tmp_path}"), RemoteFolder)
    with pytest.raises(ValueError, match="nonsense"):
        open_folder("nonsense://x/y")


def test_an_engine_knows_what_a_lost_executor_had_finished(tmp_path: Path) -> None:
    shared = tmp_path / "segments"
    shared.mkdir()
    task = replace(TASK, segments_dir=str(shared))
    with service_of(FakeEngine("fake"), memo=Memo(None, memory_bytes=1 << 20), name="first") as first:
        before = ask(first, [row(n) for n in range(20)], task=task)
        eventually(lambda: len(written(shared)) == 20)
    with service_of(FakeEngine("fake"), memo=Memo(None, memory_bytes=1 << 20), name="second") as second:
        after = ask(second, [row(n) for n in range(25)], task=task)
        assert second.stats()["requests"] == 5
    assert {n: after[n] for n in range(20)} == before


def test_rows_of_other_jobs_are_not_put_down(tmp_path: Path) -> None:
    with service_of(FakeEngine("fake")) as service:
        ask(service, [row(1)])
        ask(service, [row(2)], task=replace(TASK, segments_dir=str(tmp_path)))
    assert [c.input_hash for c in written(tmp_path)] == [row(2).input_hash]
