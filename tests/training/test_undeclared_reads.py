"""Files that a user's parts read: declared ones are part of the run id, others are rejected by the check."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from attnlab import testing
from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint
from attnlab.sweep.plan import check_cache, invariants_gate
from attnlab.training.preflight import check, count_resource

PART = """
import io, json, os, pathlib
import numpy as np
import torch
def read(path, mode="r", opened=open):
    with opened(path, mode) as file:
        return file.read() if "r" in mode else file.write("x")
{head}
from attnlab.attention.scores.bias import Bias
from attnlab.training.callbacks import StepCallback
HERE = pathlib.Path(__file__).parent
class Part(Bias):
    def __init__(self, path=None):
        super().__init__()
        {body}
    def compute_bias(self, b, h, q_idx, kv_idx):
        return 0.0 * (q_idx - kv_idx)
class Callback(StepCallback):
    def __init__(self):
        (HERE / "settings.json").read_text()
    def on_step_end(self, trainer, module): ...
"""
SCORE = "++model.attention.scores.mine={_target_: mine.Part}"
NAMED = "++model.attention.scores.mine={_target_: mine.Part, path: PATH}"
FIX = "which it does not declare, so a change of it would not retrain: add FILES = (FILE) to mine.py"


@pytest.fixture
def write_part(tmp_path, monkeypatch):
    """`write_part(head, body)` writes the module `mine` and its settings into the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "reader.py").write_text(
        "from pathlib import Path\ndef read(path): return Path(path).read_text()\n"
    )
    np.save(tmp_path / "array.npy", np.zeros(2))
    torch.save(torch.zeros(2), tmp_path / "weights.pt")

    def write(head="", body="pass"):
        (tmp_path / "mine.py").write_text(PART.format(head=head, body=body))
        for name in ("mine", "reader"):
            sys.modules.pop(name, None)

    yield write
    for name in ("mine", "reader"):
        sys.modules.pop(name, None)


def hash_source(config):
    return fingerprint.hash_run_source(config, "attnlab.training.run")


@pytest.mark.parametrize(
    ("head", "body", "file"),
    [
        ("", "(HERE / 'settings.json').read_text()", "settings.json"),
        ("", "json.loads(read('settings.json', opened=io.open))", "settings.json"),
        ("", "os.close(os.open(b'settings.json', os.O_RDONLY))", "settings.json"),
        ("", "np.load('array.npy')", "array.npy"),
        ("", "np.load('array.npy', mmap_mode='r')", "array.npy"),
        ("", "torch.load(HERE / 'weights.pt')", "weights.pt"),
        ("import reader", "reader.read('settings.json')", "settings.json"),
        ("TEXT = read('settings.json')", "pass", "settings.json"),
        ("FILES = ('array.npy',)", "read('settings.json', 'r+'); np.load('array.npy')", None),
    ],
)
def test_an_undeclared_read_is_rejected_in_one_line(compose, write_part, head, body, file):
    write_part(head, body)
    files = f'"{file}",' if file else '"array.npy", "settings.json"'
    fix = FIX.replace("FILE)", f"{files})")
    if "reader" in head:
        fix = fix.replace("mine.py", "reader.py")
    with pytest.raises(InvalidConfig) as caught:
        check(compose(SCORE))
    assert fix in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (file or "settings.json") in str(caught.value).partition(" reads ")[2]


def test_every_command_that_builds_a_part_rejects_its_undeclared_reads(compose, write_part):
    write_part("TEXT = read('settings.json')")
    for build in (
        lambda: count_resource(compose(SCORE), "parameters"),
        lambda: testing.verify(compose(SCORE)),
        lambda: check(compose("++callbacks.mine={_target_: mine.Callback}")),
    ):
        sys.modules.pop("mine", None)
        with pytest.raises(InvalidConfig, match=r"^mine\.py reads settings\.json, which it does not declare"):
            build()


@pytest.mark.parametrize(
    ("head", "body", "part"),
    [
        ("FILES = ('settings.json',)", "read('settings.json')", SCORE),
        ("FILES = 'settings.json'", "(HERE / 'settings.json').read_text()", SCORE),
        ("FILES: tuple = ['./settings.json', 'weights.pt']", "torch.load('weights.pt')", SCORE),
        ("", "read(path)", NAMED.replace("PATH", "settings.json")),
        ("", "read(path[1])", NAMED.replace("PATH", "[a, settings.json]")),
        ("", "read('book.txt')", SCORE),  # the corpus
        ("", "read('notes.txt', 'w')", SCORE),
        (
            "",
            "os.path.exists('a.json'); read(os.devnull); read('reader.py')",
            SCORE,
        ),
    ],
)
def test_declared_named_and_other_files_may_be_read(compose, write_part, head, body, part):
    write_part(head, body)
    assert check(compose(part))["parameters"]


def test_a_part_may_read_while_nothing_is_checked(compose, write_part):
    write_part("FILES = ('settings.json',)", "read('settings.json')")
    check(compose(SCORE))
    assert Path("array.npy").read_bytes()
    assert check(compose())["parameters"], "of a config without user's parts, after one with them"


@pytest.mark.parametrize("head", ["FILES = ('settings.json',)", ""])
def test_the_content_of_a_file_is_part_of_the_id_and_of_the_caches(compose, write_part, head):
    write_part(head)
    part = SCORE if head else NAMED.replace("PATH", "settings.json")
    config, plain = compose(part), compose()
    keys = [
        hash_source,
        lambda config: check_cache.make_cache_key(config, "trainer"),
        lambda config: invariants_gate.make_cache_key(config, "attnlab.testing"),
    ]
    before, plain_before = [key(config) for key in keys], hash_source(plain)
    assert [key(config) for key in keys] == before
    Path("settings.json").write_text('{"a": 1}')
    assert [key(config) == other for key, other in zip(keys, before, strict=True)] == [False] * 3
    assert hash_source(plain) == plain_before
    Path("settings.json").write_text("{}")
    assert hash_source(config) == before[0]


def test_a_missing_declared_file_is_one_line(compose, write_part):
    write_part("FILES = ('settings.json', 'none.json')")
    message = r"^mine\.py declares none\.json in FILES, but .* cannot be read .*: correct the name"
    for hash_files in (hash_source, lambda config: check_cache.make_cache_key(config, "trainer")):
        with pytest.raises(InvalidConfig, match=message):
            hash_files(compose(SCORE))


@pytest.mark.parametrize("value", ["3", "{'a': 1}", "[str(1)]", "('a', 2)", "os.listdir()"])
def test_a_variable_files_of_another_kind_declares_nothing(compose, write_part, value):
    write_part(f"FILES = {value}")
    assert hash_source(compose(SCORE))


def test_a_constructor_key_named_path_names_a_file_and_no_object(compose, write_part):
    write_part("", "read(path)")
    outcomes = testing.verify(compose(NAMED.replace("PATH", "settings.json")))
    assert not [str(outcome) for outcome in outcomes if outcome.status == "failed"]
