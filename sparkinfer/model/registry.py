"""The MLflow model registry: an alias is resolved once, on the driver; a version becomes a folder that from_pretrained reads."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkinfer.errors import DownloadFailed, MissingDependency, ModelIncomplete, ModelNotFound, UnsupportedModel
from sparkinfer.model import fingerprint
from sparkinfer.model.retry import first_line
from sparkinfer.model.uri import ModelUri

_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A registered model made fixed.

    Attributes:
        version: the registry's version number.
        fingerprint: over what the registry says the version is; the files are not read.
        tracking_uri: where it was found, for executors that have no MLflow settings of their own.
        registry_uri: the same of the registry.
    """

    version: str
    fingerprint: str
    tracking_uri: str
    registry_uri: str


def pin(uri: ModelUri, *, tracking_uri: str | None, registry_uri: str | None) -> Pin:
    """The version that a number or an alias means now.

    Raises:
        ModelNotFound: no such model, version or alias.
        DownloadFailed: the registry did not answer.
        MissingDependency: mlflow is not installed.
    """
    try:
        import mlflow
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise MissingDependency("Models of a registry (models:/...) need mlflow: pip install mlflow.") from error
    tracking = tracking_uri or mlflow.get_tracking_uri()
    registry = registry_uri or (tracking if tracking_uri else mlflow.get_registry_uri())
    client = mlflow.MlflowClient(tracking_uri=tracking, registry_uri=registry)
    try:
        if uri.alias is not None:
            version = client.get_model_version_by_alias(uri.location, uri.alias)
        else:
            version = client.get_model_version(uri.location, str(uri.revision))
    except MlflowException as error:
        raise _explained(uri, registry, error) from error
    identity = {
        "name": str(version.name), "version": str(version.version), "source": str(version.source),
        "created": str(version.creation_timestamp), "run": str(version.run_id),
    }  # fmt: skip
    return Pin(
        version=str(version.version),
        fingerprint=fingerprint.combine(identity),
        tracking_uri=tracking,
        registry_uri=registry,
    )


def _explained(uri: ModelUri, registry: str, error: Any) -> Exception:
    wanted = f"alias {uri.alias!r}" if uri.alias is not None else f"version {uri.revision}"
    place = registry.rpartition("@")[2]  # without a user and password
    if error.error_code in _ABSENT:
        return ModelNotFound(f"The registry {place} has no model {uri.location!r} with {wanted} ({first_line(error)}).")
    return DownloadFailed(
        f"The registry {place} did not answer for {uri.location!r} with {wanted}: {first_line(error)}"
    )


def download(location: str, folder: Path, *, tracking_uri: str | None, registry_uri: str | None) -> None:
    """Fetch ``models:/name/3`` into ``folder``, laid out for from_pretrained.

    Understands the transformers flavor (``model/`` beside ``components/tokenizer/``) and a logged model folder.

    Raises:
        DownloadFailed: the registry or its artifact store did not deliver.
        ModelIncomplete: no or several models in it.
        UnsupportedModel: it holds only a reference to the hub.
    """
    from mlflow import MlflowClient
    from mlflow.artifacts import download_artifacts

    name, _, version = location.removeprefix("models:/").rpartition("/")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.mlflow-") as scratch:
        try:
            # Asked of the registry by hand: download_artifacts looks models:/name/version up in the default registry.
            client = MlflowClient(tracking_uri=tracking_uri, registry_uri=registry_uri)
            source = client.get_model_version_download_uri(name, version)
            got = download_artifacts(
                artifact_uri=source, dst_path=scratch, tracking_uri=tracking_uri, registry_uri=registry_uri
            )
        except OSError:
            raise  # the disk's; explained by the cache
        except Exception as error:
            raise DownloadFailed(
                f"{location} could not be downloaded from the registry: {first_line(error)}"
            ) from error
        arrange(Path(got), folder, place=location)


def arrange(source: Path, folder: Path, *, place: str) -> None:
    """Move a logged model's files into ``folder``, tokenizer beside weights.

    Raises:
        ModelIncomplete: no or several folders with a config.json.
        UnsupportedModel: it holds only a reference to the hub.
    """
    model = _model_folder(source, place)
    tokenizer = model.parent / "components" / "tokenizer"
    parts = [model, tokenizer] if tokenizer.is_dir() else [model]
    for part in parts:
        for path in sorted(part.iterdir()):
            if not (folder / path.name).exists() and path != tokenizer.parent:
                shutil.move(path, folder / path.name)


def _model_folder(source: Path, place: str) -> Path:
    found = sorted({path.parent for path in source.rglob("config.json") if "components" not in path.parts})
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(path.relative_to(source)) for path in found[:5])
        raise ModelIncomplete(
            f"{place} holds several models ({names}); register the one that is meant as a version of its own."
        )
    reference = _hub_reference(source)
    if reference is not None:
        raise UnsupportedModel(
            f"{place} holds only a reference to the hub, no weights; name the model itself ({reference}), "
            "or log it with save_pretrained=True."
        )
    raise ModelIncomplete(
        f"{place} holds no config.json; log a transformers model, or a folder saved by save_pretrained()."
    )


def _hub_reference(source: Path) -> str | None:
    """``name@commit`` of a transformers flavor that was logged without its weights."""
    import yaml

    path = source / "MLmodel"
    if not path.is_file():
        return None
    flavor = (yaml.safe_load(path.read_text()).get("flavors") or {}).get("transformers") or {}
    name, revision = flavor.get("source_model_name"), flavor.get("source_model_revision")
    return f"{name}@{revision}" if name and revision else name
