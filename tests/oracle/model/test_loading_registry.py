"""Models of the MLflow registry and GGUF files: pinned, fetched, laid out for from_pretrained. A real sqlite registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkinfer.errors import InvalidModelUri, ModelIncomplete, ModelNotFound, UnsupportedModel
from sparkinfer.model import fetch, registry, resolve
from tests.support.model_folders import write_model


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry with two versions of ``tiny``; the alias ``champion`` is the first."""
    import mlflow

    root = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{root}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model("tiny")
    flavor = root / "flavor"  # as mlflow.transformers.log_model lays it out
    write_model(flavor / "model")
    (flavor / "components" / "tokenizer").mkdir(parents=True)
    (flavor / "model" / "tokenizer.json").rename(flavor / "components" / "tokenizer" / "tokenizer.json")
    (flavor / "MLmodel").write_text("flavors: {transformers: {}}\n")
    client.create_model_version("tiny", source=str(flavor))
    client.create_model_version("tiny", source=str(write_model(root / "plain")))
    client.set_registered_model_alias("tiny", "champion", "1")
    return uri


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKINFER_CACHE", str(tmp_path / "cache"))


def test_an_alias_is_pinned_to_its_version(store: str) -> None:
    by_alias = resolve("models:/tiny@champion", tracking_uri=store)
    by_number = resolve("models:/tiny/1", tracking_uri=store)
    assert (by_alias.version, by_alias.location, by_alias.kind) == ("1", "models:/tiny/1", "mlflow")
    assert (by_alias.tracking_uri, by_alias.registry_uri) == (store, store)
    assert by_alias.fingerprint == by_number.fingerprint != resolve("models:/tiny/2", tracking_uri=store).fingerprint


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_flavor_and_a_plain_folder_become_one_folder(store: str, version: str) -> None:
    folder = fetch(resolve(f"models:/tiny/{version}", tracking_uri=store))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("uri", ["models:/tiny/9", "models:/tiny@loser", "models:/absent/1"])
def test_what_the_registry_does_not_have_is_not_found(store: str, uri: str) -> None:
    with pytest.raises(ModelNotFound, match="has no model"):
        resolve(uri, tracking_uri=store)


def test_a_version_without_or_with_several_models_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelIncomplete, match=r"no config\.json"):
        registry.arrange(tmp_path / "empty", tmp_path, place="models:/x/1")
    write_model(tmp_path / "two" / "a")
    write_model(tmp_path / "two" / "b")
    with pytest.raises(ModelIncomplete, match="several models"):
        registry.arrange(tmp_path / "two", tmp_path, place="models:/x/1")
    flavor = "flavors: {transformers: {source_model_name: org/tiny, source_model_revision: abc}}\n"
    (tmp_path / "empty" / "MLmodel").write_text(flavor)
    with pytest.raises(UnsupportedModel, match="org/tiny@abc"):
        registry.arrange(tmp_path / "empty", tmp_path, place="models:/x/1")


def test_gguf_files_are_checked_on_the_driver(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"<html>")
    with pytest.raises(ModelIncomplete, match="GGUF"):
        resolve(str(tmp_path / "m.gguf"))
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(InvalidModelUri, match="gguf-split"):
        resolve(str(tmp_path / "m-00001-of-00002.gguf"))


def test_a_cut_gguf_file_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(10))
    with pytest.raises(ModelIncomplete, match="cut"):
        fetch(resolve(str(tmp_path / "m.gguf")))
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []
