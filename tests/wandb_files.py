"""W&B's offline files, read through wandb's own message classes."""

import struct
from contextlib import suppress


def records(path):
    """The messages of a .wandb file: LevelDB's log format, blocks of 32 KiB, 7-byte headers.

    Ends W&B's service of this process first: a finished run's last records may still be with it.
    """
    import wandb
    from wandb.proto import wandb_internal_pb2

    with suppress(ConnectionError):
        wandb.teardown()

    data, at, parts = path.read_bytes(), 7, []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or last part
            record = wandb_internal_pb2.Record()
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
