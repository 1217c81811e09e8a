"""A stand-in for the hub on the loopback: one model, counted requests, rate limits and broken connections on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "c0ffee" + "0" * 34


class HubServer:
    """Serves the files of a folder as ``org/tiny``; ``busy`` and ``broken`` say how often a request fails first.

    Attributes:
        requests: how often each path was asked for.
        busy: path suffix -> how many answers are 429.
        broken: path suffix -> how many answers end after half of the bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def downloads(self, name: str) -> int:
        """How often a file was asked for."""
        return sum(count for path, count in self.requests.items() if path.endswith(f"/{name}"))

    def _takes(self, what: Counter[str], path: str) -> bool:
        with self._lock:
            for suffix, left in what.items():
                if path.endswith(suffix) and left > 0:
                    what[suffix] -= 1
                    return True
        return False

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """One request."""
        path = request.path.partition("?")[0]
        with self._lock:
            self.requests[path] += 1
        if self._takes(self.busy, path):
            self._send(request, 429, b"slow down", {"Retry-After": "0"})
        elif path.startswith("/api/models/org/tiny"):
            self._send(request, 200, json.dumps(self._info()).encode(), {"Content-Type": "application/json"})
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            self._send_file(request, path)
        else:
            self._send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _info(self) -> dict[str, Any]:
        siblings = []
        for path in sorted(self.folder.iterdir()):
            content = path.read_bytes()
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"rfilename": path.name, "size": len(content), "blobId": blob}
            if path.suffix == ".safetensors":
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}
            siblings.append(entry)
        config = json.loads((self.folder / "config.json").read_text())
        return {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings, "config": config, "tags": [],
                "private": False, "downloads": 0, "likes": 0}  # fmt: skip

    def _send_file(self, request: BaseHTTPRequestHandler, path: str) -> None:
        content = (self.folder / path.rpartition("/")[2]).read_bytes()
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        part = content[start:]
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        sent = part[: len(part) // 2] if self._takes(self.broken, path) else part
        self._send(request, 206 if start else 200, sent, headers, length=len(part))

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], *, length: int | None = None
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body) if length is None else length))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
        if length is not None and length != len(body):
            request.wfile.flush()
            request.connection.close()
