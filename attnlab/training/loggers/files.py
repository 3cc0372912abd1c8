"""W&B's files on disk, read through wandb's own message classes."""

import struct
from collections.abc import Iterator
from typing import Any


def records(data: bytes) -> Iterator[Any]:
    """The messages of a W&B file: LevelDB's log format, blocks of 32 KiB after 7 bytes of W&B's own."""
    from wandb.proto import wandb_internal_pb2 as messages

    at, parts = 7, list[bytes]()
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4) and at <= len(data):  # whole, or the last part
            record: Any = messages.Record()  # type: ignore[attr-defined]
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []
