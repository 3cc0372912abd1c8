"""Files of numbers that may be anybody's: what a header says of its size is believed within bounds.

A few kilobytes can claim a trillion rows, or unpack to more than a machine holds. A file may unpack to a
hundred times its own size, and to a quarter of a gigabyte in any case; what runs leave is far below that.
"""

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from attnlab.errors import Refused

FREE = 2**28  # bytes
RATIO = 100
CELLS = 10_000_000  # of a table
ARRAYS = 1000  # of an archive
LONGEST = 1000  # bytes of a text in a table
PACKED = (".gz", ".dz")


def arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file. Refused where it would unpack to too much; ValueError, or BadZipFile, for
    what is broken. Pickles are not read.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        _refuse_more(path, sum(entry.file_size for entry in entries), path.stat().st_size)
        if len(entries) > ARRAYS:
            raise _refused(path, f"{len(entries):,} arrays")
        for entry in entries:
            with archive.open(entry) as file:
                shape, dtype = _header(file)
            if math.prod(shape) * max(1, dtype.itemsize) > entry.file_size:
                raise _refused(path, f"an array of shape {shape} in {entry.file_size:,} bytes")
    with np.load(path, allow_pickle=False) as loaded:
        return dict(loaded)


def table(path: Path) -> pa.Table:
    """The rows of a parquet file of numbers and short texts. Refused where it claims too many, or would
    unpack to too much; ValueError or OSError for what is broken.
    """
    try:
        return _table(path)
    except (pa.ArrowNotImplementedError, pa.ArrowMemoryError, pa.ArrowTypeError) as error:
        raise ValueError(str(error)) from error


def unpacked(packed: bytes, what: str) -> bytes:
    """What gzip packed. Refused, naming `what`, where that is too much; ValueError where it is broken."""
    limit = _limit(len(packed))
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(packed, limit + 1)
    except zlib.error as error:
        raise ValueError(f"{what}: {error}") from error
    if len(content) > limit:
        raise _refused(what, f"{len(packed):,} bytes that unpack to more than {limit:,}")
    return content


def read(paths: Sequence[Path]) -> Iterator[bytes]:
    """The content of each file, unpacked where its name ends in .gz or .dz (dictzip). Refused where all of
    them together would unpack to too much; ValueError for what is broken; OSError.
    """
    limit = left = _limit(sum(path.stat().st_size for path in paths))
    for path in paths:
        content = _unpacked(path, left + 1) if path.suffix in PACKED else path.read_bytes()
        left -= len(content)
        if left < 0:
            raise Refused(f"{path} unpacks to more than {limit:,} bytes: it is not read")
        yield content


def unpacked_file(path: Path) -> bytes:
    """What gzip packed into a file. Refused where it is too much; ValueError for what is broken; OSError."""
    limit = _limit(path.stat().st_size)
    content = _unpacked(path, limit + 1)
    if len(content) > limit:
        raise Refused(f"{path} unpacks to more than {limit:,} bytes: it is not read")
    return content


def _unpacked(path: Path, most: int) -> bytes:
    """The first `most` bytes of what gzip packed."""
    try:
        with gzip.open(path) as file:
            return file.read(most)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is broken: {error or 'it ends too soon'}") from error


def _table(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        schema, groups = file.schema_arrow, [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        rows = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
    if rows * max(1, len(schema)) > CELLS:
        raise _refused(path, f"{rows:,} rows of {len(schema)} columns")
    _refuse_more(path, sum(group.total_byte_size for group in groups), path.stat().st_size)
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    for field in schema:
        if not (field.name in texts or pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
            raise ValueError(f"column {field.name} is of type {field.type}")
    found = pq.read_table(path, read_dictionary=texts)
    for name in texts:
        for chunk in found[name].chunks:
            if any(len(text or "") > LONGEST for text in chunk.dictionary.to_pylist()):
                raise _refused(path, f"texts of more than {LONGEST} characters as {name}")
    return found.cast(schema)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an npy file, of which no more is read."""
    version = np.lib.format.read_magic(file)
    readers: dict[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"an array of the unknown version {version}")
    shape, _, dtype = readers[version](file)
    return shape, dtype


def _limit(size: int) -> int:
    return max(FREE, RATIO * size)


def _refuse_more(path: Path, claimed: int, size: int) -> None:
    if claimed > _limit(size):
        raise _refused(path, f"{claimed:,} bytes in a file of {size:,}")


def _refused(what: Path | str, holds: str) -> Refused:
    return Refused(f"{what} claims to hold {holds}: it is not read; delete it and run the command again")
