"""A W&B server of the tests' own, good enough for a run to begin and end, that can be told to misbehave."""

import gzip
import json
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STAGES = ("init", "middle", "end")
FAULTS = (
    "401", "403", "429", "500", "portal", "redirects", "cut", "drips", "hangs", "drops", "nonsense", "dies",
)  # fmt: skip


class Server:
    """`url` to point WANDB_BASE_URL at. `rows`, `summaries`: per run, what it was sent; `runs`, `files`.

    `fault`: what becomes of all that is asked of it from `stage` on: `init` (at once), `middle` (once a run
    has begun), `end` (once it has been sent history: that very answer is the first). Faults: an HTTP status,
    a `portal` that greets with HTML, `redirects` that never end, a body that is `cut` or `drips`, silence
    (`hangs`), connections that it `drops`, `nonsense`, or it `dies` (hangs until `close`, then refuses).
    """

    def __init__(self, fault: str = "", stage: str = "middle") -> None:
        self.fault, self.stage, self.closed = fault, stage, threading.Event()
        self.rows: dict[str, dict[int, dict[str, Any]]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []
        self.views: list[dict[str, Any]] = []
        self.operations: list[str] = []
        self.files: list[str] = []
        self.met = 0  # times that it misbehaved
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": self}))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def reached(self) -> str:
        """The stage that its one run has come to."""
        return "end" if any(self.rows.values()) else "middle" if self.runs else "init"

    def history(self, run: str) -> list[dict[str, Any]]:
        """The rows that it has of a run, in their order; a row that was sent twice is there once."""
        rows = self.rows.get(run, {})
        return [rows[at] for at in sorted(rows)]

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
        if not self._misbehaved():
            self._answer({})

    def do_PUT(self) -> None:
        self._body()
        if not self._misbehaved():
            self.server_of.files.append(self.path.removeprefix("/upload/"))
            self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path.startswith("/graphql"):
            asked = json.loads(body)
            self._graphql(asked.get("operationName") or "", asked["query"], asked.get("variables") or {})
        elif self.path.endswith("/file_stream"):
            self._stream(self.path.split("/")[-2], json.loads(body))
        elif not self._misbehaved():
            self._answer({})

    def _graphql(self, name: str, query: str, variables: dict[str, Any]) -> None:
        server = self.server_of
        server.operations.append(name)
        if self._misbehaved():
            return
        server.views += [variables] if "upsertView" in query else []
        if "upsertBucket" in query:
            server.runs.append(variables)
            bucket = {
                "id": "cnVu", "name": variables.get("name"), "displayName": variables.get("displayName"),
                "description": None, "config": None, "sweepName": None, "historyLineCount": 0,
                "project": {"id": "cA==", "name": "attnlab", "entity": {"id": "ZQ==", "name": "me"}},
            }  # fmt: skip
            self._answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        elif "createRunFiles" in query:
            files = [{"name": one, "uploadUrl": f"{server.url}/upload/{one}"} for one in variables["files"]]
            made = {"runID": "cnVu", "uploadHeaders": [], "files": files}
            self._answer({"data": {"createRunFiles": made}})
        elif "createArtifact(" in query:
            made = {
                "id": "YQ==",
                "state": "COMMITTED",
                "artifactSequence": {"latestArtifact": {"id": "YQ=="}},
            }
            self._answer({"data": {"createArtifact": {"artifact": made}}})
        elif "historyLineCount" in query:
            self._answer({"data": {"model": {**_PROJECT, "bucket": self._status(variables["name"])}}})
        else:
            self._answer({"data": _KNOWN | {"upsertView": {"view": _VIEW, "inserted": True}}})

    def _status(self, run: str) -> dict[str, Any] | None:
        server = self.server_of
        if not any(one.get("name") == run for one in server.runs):
            return None
        tail = [json.dumps(row) for row in server.history(run)[-1:]]
        return {
            "id": "cnVu", "name": run, "displayName": run, "logLineCount": 0, "eventsLineCount": 0,
            "historyLineCount": len(server.rows.get(run, {})), "historyTail": json.dumps(tail),
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(server.summaries.get(run, {})), "config": "{}", "tags": [],
            "notes": None, "wandbConfig": '{"t": 1}',
        }  # fmt: skip

    def _stream(self, run: str, sent: dict[str, Any]) -> None:
        if self._misbehaved():
            return
        server, files = self.server_of, sent.get("files") or {}
        history = files.get("wandb-history.jsonl") or {}
        for at, line in enumerate(history.get("content") or [], start=history.get("offset") or 0):
            server.rows.setdefault(run, {})[at] = json.loads(line)
        for line in (files.get("wandb-summary.json") or {}).get("content") or []:
            server.summaries[run] = json.loads(line)
        if not self._misbehaved():
            self._answer({})

    def _misbehaved(self) -> bool:
        server = self.server_of
        if not server.fault or STAGES.index(server.reached) < STAGES.index(server.stage):
            return False
        server.met += 1
        match server.fault:
            case "hangs" | "dies":
                server.closed.wait(60)
                self.close_connection = True
            case "drops":
                self.close_connection = True
            case "nonsense":
                self._answer({})
            case "portal":
                self._send(200, b"<html><body>Please sign in</body></html>", "text/html")
            case "redirects":
                self._send(307, b"", "text/html", Location=self.path)
            case "cut":
                self._send(200, b'{"data": {"up', "application/json", promised=1000)
                self.close_connection = True
            case "drips":
                self._send(200, b"{", "application/json", promised=10_000)
                with suppress(OSError):
                    while not server.closed.wait(0.1):
                        self.wfile.write(b" ")
                self.close_connection = True
            case status:
                self._send(int(status), b'{"errors": [{"message": "no"}]}', "application/json")
        return True

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, what: Any) -> None:
        self._send(200, json.dumps(what).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str, promised: int = 0, **headers: str) -> None:
        self.send_response(status)
        told = {"Content-Type": kind, "Content-Length": str(promised or len(body)), **headers}
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
