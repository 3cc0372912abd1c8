"""W&B's files on disk, read through wandb's message classes; and servers that W&B cannot log to."""

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BLOCK, _HEAD, _WHOLE, _LAST = 32768, 7, 1, 4


def records(path):
    """The messages of a .wandb file: LevelDB's log format, after 7 bytes of W&B's own.

    Ends W&B's service of this process first: a finished run's last records may still be with it.
    """
    import wandb
    from wandb.proto import wandb_internal_pb2 as messages

    with suppress(ConnectionError):
        wandb.teardown()
    data, at, parts = path.read_bytes(), _HEAD, []
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (_WHOLE, _LAST) and at <= len(data):
            record = messages.Record()
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []


def history(path):
    return [
        {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def summary_of(path):
    """Dotted name -> JSON text."""
    found = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "summary":
            found |= {
                ".".join(item.nested_key) or item.key: item.value_json for item in record.summary.update
            }
    return found


def run_of(path):
    """The message that names the W&B run of a file."""
    return next(record.run for record in records(path) if record.HasField("run"))


@contextmanager
def server(kind):
    """The url of a server that accepts and never answers (`mute`), is not there (`closed`) or refuses every
    request with 401 (`refusing`).
    """
    if kind == "refusing":
        with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as http:
            threading.Thread(target=http.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{http.server_port}"
            http.shutdown()
        return
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        listening.listen(128) if kind == "mute" else listening.close()
        yield f"http://127.0.0.1:{port}"


class _Refusing(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(401)
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass
