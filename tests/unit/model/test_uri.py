"""What a model argument means."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from sparkinfer.errors import InvalidModelUri, ModelError, ModelNotFound
from sparkinfer.model import gguf
from sparkinfer.model.resolution import resolve
from sparkinfer.model.uri import ModelUri, parse


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sample", ModelUri(kind="sample", location="sample")),
        ("fake:?answer=yes", ModelUri(kind="fake", location="fake:?answer=yes")),
        ("org/name", ModelUri(kind="hub", location="org/name")),
        ("org/name@refs/pr/3", ModelUri(kind="hub", location="org/name", revision="refs/pr/3")),
        ("gpt2", ModelUri(kind="hub", location="gpt2")),
        ("models:/sentiment/3", ModelUri(kind="mlflow", location="sentiment", revision="3")),
        ("models:/sentiment@champion", ModelUri(kind="mlflow", location="sentiment", alias="champion")),
        (
            "models:/main.nlp.sentiment@champion",
            ModelUri(kind="mlflow", location="main.nlp.sentiment", alias="champion"),
        ),
    ],
)
def test_every_form_is_taken_apart(uri: str, expected: ModelUri) -> None:
    assert parse(uri) == expected


@pytest.mark.parametrize(
    "uri",
    ["", " org/name", "a/b/c", "http://host/model", "models:/name", "models:/name/latest", "models:/name/Production", "org//name",
     "s3://bucket/model", "org/na me", "org/name@", "models:/name@a/3", "a\x00b"],
)  # fmt: skip
def test_other_forms_are_refused(uri: str) -> None:
    with pytest.raises(InvalidModelUri):
        parse(uri)


def test_a_moving_registry_stage_names_the_way_out() -> None:
    with pytest.raises(InvalidModelUri, match="models:/name@alias"):
        parse("models:/name/Production")


def test_folders_and_gguf_files_become_absolute(tmp_path, monkeypatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert parse("./model") == ModelUri(kind="folder", location=str(tmp_path / "model"))
    assert parse("model") == ModelUri(kind="folder", location=str(tmp_path / "model"))
    assert parse("m.gguf") == ModelUri(kind="gguf", location=str(tmp_path / "m.gguf"))
    assert parse(f"file://{tmp_path}/model").location == str(tmp_path / "model")


def test_a_missing_path_names_what_lies_near(tmp_path) -> None:
    (tmp_path / "smollm2-135m").mkdir()
    with pytest.raises(ModelNotFound, match="did you mean smollm2-135m"):
        parse(str(tmp_path / "smollm-135m"))
    with pytest.raises(ModelNotFound, match="its folder .*nowhere is missing"):
        parse(str(tmp_path / "nowhere" / "deep" / "model"))


def test_a_file_that_is_no_gguf_is_refused(tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InvalidModelUri, match="folder"):
        parse(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["x" * 5000, "/" + "y" * 300, "org/" + "z" * 400 + ".gguf"])
def test_a_name_that_the_disk_refuses_is_no_crash(name: str) -> None:
    with pytest.raises(ModelError, match=r"cannot be read|is no model address|does not exist"):
        resolve(name)


def test_what_may_not_be_read_is_said(tmp_path, monkeypatch) -> None:
    """Tests may run as root, whom nothing is forbidden: the disk's own answer stands in."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    denied = PermissionError(13, "Permission denied", str(tmp_path / "m.gguf"))
    monkeypatch.setattr(gguf, "check_readable", Mock(side_effect=denied))
    with pytest.raises(ModelNotFound, match=r"cannot be read: Permission denied \(.*m\.gguf\)"):
        resolve(str(tmp_path / "m.gguf"))
