"""The hub: pinning, one download a host, rate limits, broken connections, offline. Against a server on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkinfer.errors import DownloadFailed, ModelNotFound, UnsupportedModel
from sparkinfer.model import fetch, hub, resolve, retry
from tests.support.hub_server import COMMIT, HubServer
from tests.support.model_folders import write_model


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    from huggingface_hub import constants

    folder = write_model(tmp_path / "hub")
    (folder / "README.md").write_text("not needed")
    served = HubServer(folder)
    monkeypatch.setenv("SPARKINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.01)
    yield served
    served.close()


def test_a_branch_becomes_a_commit_and_its_files_a_folder(server: HubServer) -> None:
    ref = resolve("org/tiny")
    assert (ref.kind, ref.version, ref.revision, ref.name) == ("hub", COMMIT, COMMIT, "org/tiny")
    folder = fetch(ref)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == (server.folder / "model.safetensors").read_bytes()


def test_a_pinned_revision_that_is_here_makes_no_network_call(server: HubServer) -> None:
    first = resolve("org/tiny")
    fetch(first)
    asked = server.requests.total()
    again = resolve(f"org/tiny@{COMMIT}")
    assert again.fingerprint == first.fingerprint
    fetch(again)
    assert server.requests.total() == asked


def test_offline_the_last_pin_of_a_branch_still_holds(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve("org/tiny")
    folder = fetch(first)
    monkeypatch.setattr(hub, "_is_offline", lambda: True)
    asked = server.requests.total()
    assert resolve("org/tiny").fingerprint == first.fingerprint
    assert fetch(first) == folder
    assert server.requests.total() == asked
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        resolve("org/other")


def test_rate_limits_and_broken_connections_pass(server: HubServer) -> None:
    server.busy.update({"/api/models/org/tiny/revision/main": 2, "/config.json": 1})
    server.broken.update({"/model.safetensors": 2})
    folder = fetch(resolve("org/tiny"))
    assert (folder / "model.safetensors").read_bytes() == (server.folder / "model.safetensors").read_bytes()
    assert server.downloads("model.safetensors") == 3


def test_a_hub_that_stays_busy_is_a_failed_download(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.busy.update({"/main": 100})
    monkeypatch.setattr(retry, "ATTEMPTS", 3)
    with pytest.raises(DownloadFailed, match="3 attempts"):
        resolve("org/tiny")


def test_a_damaged_file_is_refused_and_nothing_is_left(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = resolve("org/tiny")
    info = server._info()
    monkeypatch.setattr(server, "_info", lambda: info)
    (server.folder / "tokenizer.json").write_text("[]")
    with pytest.raises(DownloadFailed, match="damaged"):
        fetch(ref)
    assert [p.name for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()] == []


def test_unknown_repositories_and_other_models_are_told_apart(server: HubServer) -> None:
    with pytest.raises(ModelNotFound, match="org/nothing"):
        resolve("org/nothing")
    write_model(server.folder, architectures=["BertForMaskedLM"])
    with pytest.raises(UnsupportedModel):
        resolve("org/tiny")
    write_model(server.folder)
    (server.folder / "model.safetensors").rename(server.folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickled"):
        resolve("org/tiny")
