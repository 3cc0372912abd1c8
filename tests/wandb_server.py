"""A W&B server of the tests' own, good enough for a run to begin and end, that can be told to misbehave."""

import gzip
import json
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """`url` to point WANDB_BASE_URL at. `history`, `summary`, `runs`, `files`: what it was sent.

    `after_init`: what becomes of all that a run sends once it has begun: answers, hangs, dies (hangs until
    `close`, then refuses), nonsense.
    """

    def __init__(self, after_init: str = "answers") -> None:
        self.after_init, self.closed = after_init, threading.Event()
        self.history: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.views: list[dict[str, Any]] = []
        self.operations: list[str] = []
        self.files: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": self}))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        """From here on connections are refused."""
        self.closed.set()
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.closed.is_set():
            self.close()


class Silent:
    """Accepts connections and never says a word."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Refusing:
    """An address at which nobody listens."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"

    def __enter__(self) -> "Refusing":
        return self

    def __exit__(self, *_: object) -> None:
        return


_USER = {"id": "dQ==", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
_PROJECT = {
    "id": "cA==", "internalId": "cA==", "name": "attnlab", "entityName": "me", "user": None, "artifact": None,
    "createdAt": "2026-01-01T00:00:00", "isBenchmark": False,
}  # fmt: skip
_KNOWN = {
    "viewer": _USER, "project": _PROJECT,
    "models": {
        "edges": [{"node": _PROJECT, "cursor": "x"}],
        "pageInfo": {"endCursor": None, "hasNextPage": False},
    },
}  # fmt: skip
_VIEW = {"id": "dmlldw==", "type": "runs", "name": "x", "displayName": "x", "description": "", "spec": "{}"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: Server

    def log_message(self, *_: object) -> None:
        return

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that goes without a word
            super().handle()

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        self.server_of.files.append(self.path.removeprefix("/upload/"))
        self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path.startswith("/graphql"):
            asked = json.loads(body)
            self._graphql(asked.get("operationName") or "", asked["query"], asked.get("variables") or {})
        elif self.path.endswith("/file_stream"):
            self._stream(json.loads(body))
        else:
            self._answer({})

    def _graphql(self, name: str, query: str, variables: dict[str, Any]) -> None:
        server = self.server_of
        server.operations.append(name)
        server.views += [variables] if "upsertView" in query else []
        if "upsertBucket" in query:
            server.runs.append(variables)
            bucket = {
                "id": "cnVu", "name": variables.get("name"), "displayName": variables.get("displayName"),
                "description": None, "config": None, "sweepName": None, "historyLineCount": 0,
                "project": {"id": "cA==", "name": "attnlab", "entity": {"id": "ZQ==", "name": "me"}},
            }  # fmt: skip
            self._answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        elif "createRunFiles" not in query:
            self._answer({"data": _KNOWN | {"upsertView": {"view": _VIEW, "inserted": True}}})
        elif not self._misbehaved():
            files = [{"name": one, "uploadUrl": f"{server.url}/upload/{one}"} for one in variables["files"]]
            made = {"runID": "cnVu", "uploadHeaders": [], "files": files}
            self._answer({"data": {"createRunFiles": made}})

    def _stream(self, sent: dict[str, Any]) -> None:
        if self._misbehaved():
            return
        files = sent.get("files") or {}
        for line in (files.get("wandb-history.jsonl") or {}).get("content") or []:
            self.server_of.history.append(json.loads(line))
        for line in (files.get("wandb-summary.json") or {}).get("content") or []:
            self.server_of.summary = json.loads(line)
        self._answer({})

    def _misbehaved(self) -> bool:
        if self.server_of.after_init in ("hangs", "dies"):
            self.server_of.closed.wait(60)
            self.close_connection = True
            return True
        if self.server_of.after_init == "nonsense":
            self._answer({})
            return True
        return False

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, what: Any) -> None:
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
