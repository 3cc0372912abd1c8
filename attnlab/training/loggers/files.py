"""W&B's files on disk, read and written through wandb's own message classes."""

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

_HEAD, _BLOCK = struct.pack("<4sHB", b":W&B", 0xBEE1, 0), 32768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4  # parts of a message


def records(data: bytes) -> Iterator[Any]:
    """The messages of a W&B file: LevelDB's log format, blocks of 32 KiB, of which the first begins with 7
    bytes of W&B's own."""
    from wandb.proto import wandb_internal_pb2 as messages

    at, parts = len(_HEAD), list[bytes]()
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (_WHOLE, _LAST) and at <= len(data):  # whole, or the last part
            record: Any = messages.Record()  # type: ignore[attr-defined]
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []


def encoded(messages: Iterable[Any]) -> bytes:
    """The file of some messages, as `records` reads them."""
    data = bytearray(_HEAD)
    for message in messages:
        rest, begun = message.SerializeToString(), False
        while rest or not begun:
            if (room := _BLOCK - len(data) % _BLOCK) < 7:
                data += bytes(room)
                room = _BLOCK
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = (_MIDDLE if begun else _FIRST) if rest else (_LAST if begun else _WHOLE)
            data += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            begun = True
    return bytes(data)
