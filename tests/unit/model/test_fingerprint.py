"""What a model is, as one digest."""

from __future__ import annotations

import hashlib
import os

import pytest

from sparkinfer.model import fingerprint
from sparkinfer.model.folder import weight_files
from tests.support.model_folders import write_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKINFER_CACHE", str(tmp_path / "cache"))


def digest(folder) -> str:
    return fingerprint.of_folder(folder, weight_files(folder))


def test_equal_folders_have_equal_fingerprints_wherever_they_lie(tmp_path) -> None:
    assert digest(write_model(tmp_path / "a")) == digest(write_model(tmp_path / "b" / "c"))


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja", "tokenizer.model"]
)
def test_each_file_that_can_change_an_answer_changes_it(tmp_path, name: str) -> None:
    folder = write_model(tmp_path / "m")
    before = digest(folder)
    (folder / name).write_text('{"changed": 1}')
    assert digest(folder) != before


def test_weights_change_it_and_a_readme_does_not(tmp_path) -> None:
    folder = write_model(tmp_path / "m")
    before = digest(folder)
    (folder / "README.md").write_text("read me")
    assert digest(folder) == before
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert digest(folder) != before


def test_a_large_file_is_read_once_until_it_changes(tmp_path, monkeypatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(2 << 20))
    reads = []
    real = fingerprint.hash_file
    monkeypatch.setattr(fingerprint, "hash_file", lambda p: reads.append(p) or real(p))
    first = fingerprint.of_file(path)
    assert fingerprint.of_file(path) == first == hashlib.sha256(bytes(2 << 20)).hexdigest()
    assert len(reads) == 1
    path.write_bytes(b"x" + bytes((2 << 20) - 1))
    os.utime(path, ns=(1, 1))
    assert fingerprint.of_file(path) != first
    assert len(reads) == 2


def test_a_damaged_memory_is_ignored(tmp_path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(2 << 20))
    first = fingerprint.of_file(path)
    for memory in (tmp_path / "cache" / "digests").iterdir():
        memory.write_text("{broken")
    assert fingerprint.of_file(path) == first


def test_a_blob_of_the_hubs_cache_carries_its_digest_as_its_name(tmp_path) -> None:
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    blob.write_bytes(b"never read")
    (tmp_path / "model.safetensors").symlink_to(blob)
    assert fingerprint.of_file(tmp_path / "model.safetensors") == "ab" * 32
