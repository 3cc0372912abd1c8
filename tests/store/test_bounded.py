"""Headers that lie about sizes: refused in a line, before anything of that size is made."""

import io
import json
import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnlab.errors import Refused
from attnlab.report import read_run
from attnlab.report.tables import maps
from attnlab.store.guards import bounded

ROW = {"step": [1, 2], "tokens": [5, 10], "name": ["val/loss", "x"], "value": [0.5, 0.25]}


def npz(path, name="maps.npy", header=None, content=b""):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, header) if header else np.save(out, np.arange(7))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, out.getvalue() + content)


def shape(*sizes, descr="|u1"):
    return {"shape": sizes, "fortran_order": False, "descr": descr}


def refused(read, path):
    began = time.process_time()
    with pytest.raises(Refused) as error:
        read(path)
    assert time.process_time() - began < 1
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_runs_leave_is_read_as_it_was_written(tmp_path):
    arrays = {"maps": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "tokens": np.array(["a", "bcd"])}
    np.savez_compressed(tmp_path / "attention.npz", **arrays, empty=np.zeros((0, 3)))
    found = bounded.arrays(tmp_path / "attention.npz")
    assert all((found[name] == array).all() for name, array in arrays.items())
    assert found["empty"].shape == (0, 3)
    pq.write_table(pa.table(ROW), tmp_path / "curves.parquet")
    assert bounded.table(tmp_path / "curves.parquet").equals(pq.read_table(tmp_path / "curves.parquet"))


@pytest.mark.parametrize(
    "header", [shape(10**6, 10**6), shape(2**62, 4), shape(10**12, descr="<U0"), shape(10**9, descr="<U9")]
)
def test_an_array_larger_than_its_bytes_is_refused(tmp_path, header):
    npz(tmp_path / "attention.npz", header=header, content=b"\0" * 1000)
    assert "attention.npz claims to hold an array of shape" in refused(
        bounded.arrays, tmp_path / "attention.npz"
    )


def test_a_zip_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded, "FREE", 2**20)
    npz(tmp_path / "attention.npz", header=shape(2**24), content=bytes(2**24))
    assert "bytes in a file of" in refused(bounded.arrays, tmp_path / "attention.npz")


def test_pickles_in_arrays_never_run(tmp_path):
    np.savez(tmp_path / "attention.npz", maps=np.array([{}, 1], dtype=object))
    run = read_run(tmp_path, "arm", 0)
    assert (run.maps, run.broken) == (None, {"attention.npz": "cannot be read"})


def test_a_table_of_a_million_rows_in_a_kilobyte_is_refused(tmp_path):
    rows = 4_000_000
    zeros = pa.array(np.zeros(rows, np.int64))
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["val/loss"]))
    table = pa.table({"step": zeros, "tokens": zeros, "name": names, "value": zeros})
    path = tmp_path / "curves.parquet"
    pq.write_table(table, path, store_schema=False)
    assert path.stat().st_size < 100_000
    assert "claims to hold 4,000,000 rows of 4 columns" in refused(bounded.table, path)
    run = read_run(tmp_path, "arm", 0)
    assert (run.curves, run.broken) == (None, {"curves.parquet": "cannot be read"})


def test_a_long_text_that_many_rows_share_is_refused(tmp_path):
    rows = 200_000
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["x" * 10**6]))
    path = tmp_path / "curves.parquet"
    pq.write_table(pa.table({"name": names}), path, store_schema=False)
    assert "texts of more than 1000 characters" in refused(bounded.table, path)


def test_a_table_of_other_things_is_broken(tmp_path):
    path = tmp_path / "curves.parquet"
    pq.write_table(pa.table({"name": [[1]]}), path)
    run = read_run(tmp_path, "arm", 0)
    assert (run.curves, run.broken) == (None, {"curves.parquet": "cannot be read"})


def test_a_map_of_a_report_is_unpacked_within_bounds(monkeypatch):
    monkeypatch.setattr(bounded, "FREE", 2**20)
    packed = maps.pack(np.zeros(2**24, np.uint8))
    refused(maps.unpack, packed)
    encoded = {"layers": [0], "heads": 1, "length": 10**6, "triangle": False, "weights": "", "visible": ""}
    refused(maps.decode, json.loads(json.dumps(encoded)))
