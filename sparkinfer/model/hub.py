"""The Hugging Face hub: pin a revision, fetch its files. Honours HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE.

Files are streamed by ourselves into a folder that nobody sees yet (one process a host does it, see ``cache.build_once``),
checked against the hub's own digests, and resumed where a connection broke; the hub library's file locks, which some
file systems refuse, are not needed for that. A complete snapshot in the hub's own cache is used as it lies there.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sparkinfer.errors import DownloadFailed, ModelIncomplete, ModelNotFound, SparkInferError
from sparkinfer.model import fingerprint
from sparkinfer.model.cache import cache_root
from sparkinfer.model.folder import check_config, check_folder, pickled_only
from sparkinfer.model.retry import first_line, retrying

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 30.0
_SAFE = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file of a revision: its size in bytes and its digest (SHA-256 of large files, git's blob id of small ones)."""

    path: str
    size: int | None
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A revision made fixed."""

    commit: str
    fingerprint: str


def pin(repo: str, revision: str | None, *, trust_remote_code: bool) -> Pin:
    """The commit of a branch or tag, and what its weights are; no network where a commit is asked for that is known here.

    Raises:
        ModelNotFound: no such repository or revision, or no access to it.
        UnsupportedModel: no model that writes text, or only pickled weights.
        TrustRequired: it ships its own Python code.
        DownloadFailed: the hub did not answer, and nothing is known here.
    """
    wanted = revision or "main"
    known = _recall(repo, wanted)
    if known is not None and _COMMIT.fullmatch(wanted):
        return known
    if not _is_offline():
        try:
            return _pin_online(repo, wanted, trust_remote_code=trust_remote_code)
        except DownloadFailed:
            if known is None and _snapshot(repo, wanted) is None:
                raise
    if known is not None:
        return known
    snapshot = _snapshot(repo, wanted)
    if snapshot is None:
        raise ModelNotFound(
            f"{repo}@{wanted} is not in the local cache, and HF_HUB_OFFLINE is set; download it where the hub can be reached, "
            "or name a folder."
        )
    check_folder(snapshot, trust_remote_code=trust_remote_code)
    weights = {
        path.name: path.resolve().name for path in snapshot.iterdir() if _matches(path.name, (*_SAFE, *_PICKLED))
    }
    return Pin(commit=snapshot.name, fingerprint=_fingerprint(snapshot.name, weights))


def _pin_online(repo: str, revision: str, *, trust_remote_code: bool) -> Pin:
    info = _info(repo, revision)
    files = _wanted(repo, info, trust_remote_code=trust_remote_code)
    if isinstance(info.config, dict):
        check_config(info.config, place=f"{repo}@{revision}", trust_remote_code=trust_remote_code)
    weights = {f.path: f.digest for f in files if _matches(f.path, (*_SAFE, *_PICKLED))}
    found = Pin(commit=str(info.sha), fingerprint=_fingerprint(str(info.sha), weights))
    _remember(repo, revision, found)
    _remember(repo, found.commit, found)
    return found


def _fingerprint(commit: str, weights: dict[str, str]) -> str:
    """Over the commit and the SHA-256 of the weights; the hub cache's blobs have it as their name, so it is the same offline."""
    large = {name: digest for name, digest in weights.items() if len(digest) == 64 and not name.endswith(".json")}
    return fingerprint.combine({"commit": commit, **large})


def existing(repo: str, commit: str) -> Path | None:
    """The hub cache's own snapshot of this commit, if it is whole. Makes no network call."""
    snapshot = _snapshot(repo, commit)
    if snapshot is None:
        return None
    with contextlib.suppress(SparkInferError):
        check_folder(snapshot, trust_remote_code=True)
        return snapshot
    return None


def _snapshot(repo: str, revision: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = ["*.json", "*.jinja", "*.txt", *_SAFE, "tokenizer.model"]
    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=patterns))
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None


def download(repo: str, commit: str, folder: Path) -> None:
    """Fetch the files of a pinned revision into ``folder``, each checked against the hub's digest.

    Raises:
        DownloadFailed: the hub did not deliver, or delivered something else.
        ModelNotFound: the repository or commit is gone, or there is no access to it.
    """
    if _is_offline():
        raise ModelNotFound(
            f"{repo}@{commit} is not on this host, and HF_HUB_OFFLINE is set; unset it, or name a folder."
        )
    files = _wanted(repo, _info(repo, commit), trust_remote_code=True)
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(lambda file: _download_file(repo, commit, file, folder), files))
    check_folder(folder, trust_remote_code=True)


def _wanted(repo: str, info: Any, *, trust_remote_code: bool) -> list[HubFile]:
    """The files of a repository that a model is loaded from: safetensors, else (if trusted) pickles, and the side files."""
    files = [
        HubFile(path=s.rfilename, size=s.size, digest=s.lfs.sha256 if s.lfs else (s.blob_id or ""))
        for s in info.siblings or []
    ]
    names = [f.path for f in files]
    weights = _SAFE if any(_matches(name, _SAFE) for name in names) else _PICKLED
    if weights is _PICKLED:
        pickled = [name for name in names if _matches(name, _PICKLED)]
        if not pickled:
            ggufs = [name for name in names if name.endswith(".gguf")]
            hint = f"; it holds {ggufs[0]}: download that file and name its path" if ggufs else ""
            raise ModelIncomplete(f"{repo} holds no weights (model.safetensors){hint}.")
        if not trust_remote_code:
            raise pickled_only(repo, pickled[0])
    return [f for f in files if _matches(f.path, weights) or _is_side(f.path)]


def _is_side(path: str) -> bool:
    name = path.removeprefix("additional_chat_templates/")
    return "/" not in name and fingerprint.SIDE_FILES.fullmatch(name) is not None


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _info(repo: str, revision: str) -> Any:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi(library_name="sparkinfer")
    try:
        return retrying(
            lambda: api.model_info(repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S),
            what=f"The file list of {repo}@{revision}",
        )
    except GatedRepoError as error:
        raise ModelNotFound(
            f"{repo} is gated: accept its terms on the hub and set HF_TOKEN on the driver and executors."
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{repo} has no revision {revision!r}; name a branch, tag or commit of it.") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"The hub has no model {repo}, or it is private; check the name (a folder must exist, or begin with ./ or /), or set HF_TOKEN."
        ) from error
    except SparkInferError:
        raise
    except Exception as error:
        raise DownloadFailed(f"The hub refused {repo}@{revision}: {first_line(error)}") from error


def _download_file(repo: str, commit: str, file: HubFile, folder: Path) -> None:
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        try:
            retrying(lambda: _stream(repo, commit, file, out), what=f"{repo}/{file.path}")
        except SparkInferError:
            raise
        except OSError:
            raise  # the disk's; explained by the cache
        except Exception as error:
            raise DownloadFailed(f"The hub refused {repo}/{file.path}: {first_line(error)}") from error
    _verify(repo, file, target)


def _stream(repo: str, commit: str, file: HubFile, out: IO[bytes]) -> None:
    """Append what is missing of the file to ``out``."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = build_hf_headers(library_name="sparkinfer")
    if done := out.tell():
        headers["Range"] = f"bytes={done}-"
    url = hf_hub_url(repo, file.path, revision=commit)
    with get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True) as response:
        if response.status_code == 416 and done == file.size:
            return
        hf_raise_for_status(response)
        if done and response.status_code != 206:  # the server began anew
            out.seek(0)
            out.truncate()
        for chunk in response.iter_bytes(1 << 20):
            out.write(chunk)
    if file.size is not None and out.tell() < file.size:
        raise ConnectionError(f"{file.path} ended after {out.tell()} of {file.size} bytes")


def _verify(repo: str, file: HubFile, path: Path) -> None:
    if len(file.digest) == 64:
        found = fingerprint.hash_file(path)
    elif len(file.digest) == 40:
        content = path.read_bytes()  # small files only: large ones have a SHA-256
        found = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    else:
        return
    if found != file.digest:
        raise DownloadFailed(f"{repo}/{file.path} arrived damaged (its digest is not the hub's); run again.")


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _record(repo: str, revision: str) -> Path:
    return cache_root() / "refs" / (re.sub(r"[^A-Za-z0-9._-]+", "--", f"{repo}@{revision}") + ".json")


def _recall(repo: str, revision: str) -> Pin | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Pin(**json.loads(_record(repo, revision).read_text()))
    return None


def _remember(repo: str, revision: str, found: Pin) -> None:
    """Best effort: what was pinned, for the next time that the hub cannot be reached."""
    path = _record(repo, revision)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{id(found):x}")
        part.write_text(json.dumps({"commit": found.commit, "fingerprint": found.fingerprint}))
        part.replace(path)
