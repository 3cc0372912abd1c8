"""Reader of W&B's files, through wandb's message classes, and servers that W&B cannot log to."""

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BLOCK_BYTES, _HEADER_BYTES, _FULL_RECORD, _LAST_PART = 32768, 7, 1, 4


def read_records(path):
    """Yield the messages of a .wandb file: LevelDB's log format after a header of 7 bytes.

    Ends W&B's service of this process first, which may still hold the last records of a finished run.
    """
    import wandb
    from wandb.proto import wandb_internal_pb2 as messages

    with suppress(ConnectionError):
        wandb.teardown()
    data, offset, parts = path.read_bytes(), _HEADER_BYTES, []
    while offset + 7 <= len(data):
        if _BLOCK_BYTES - offset % _BLOCK_BYTES < 7:
            offset += _BLOCK_BYTES - offset % _BLOCK_BYTES
            continue
        _, length, kind = struct.unpack("<IHB", data[offset : offset + 7])
        parts.append(data[offset + 7 : offset + 7 + length])
        offset += 7 + length
        if kind in (_FULL_RECORD, _LAST_PART) and offset <= len(data):
            record = messages.Record()
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []


def read_history(path):
    return [
        {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in read_records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def read_summary(path):
    """Read a run's summary: dotted name -> JSON text."""
    summary = {}
    for record in read_records(path):
        if record.WhichOneof("record_type") == "summary":
            summary |= {
                ".".join(item.nested_key) or item.key: item.value_json for item in record.summary.update
            }
    return summary


def read_run(path):
    """Read the message with the name and settings of a file's W&B run."""
    return next(record.run for record in read_records(path) if record.HasField("run"))


@contextmanager
def start_faulty_server(kind):
    """Yield the URL of a server that fails in one way.

    `mute` accepts connections and never answers, `closed` does not listen, `refusing` answers every request
    with 401.
    """
    if kind == "refusing":
        with ThreadingHTTPServer(("127.0.0.1", 0), _RefusingHandler) as http:
            threading.Thread(target=http.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{http.server_port}"
            http.shutdown()
        return
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        listening.listen(128) if kind == "mute" else listening.close()
        yield f"http://127.0.0.1:{port}"


class _RefusingHandler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(401)
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass
