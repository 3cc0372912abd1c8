"""Files and words that no command can use: each ends in one line, without a hang, and nothing is lost."""

import errno
import json
import multiprocessing
import os
import re
import sys
from unittest.mock import Mock

import pytest
from result_tables import write_table

from attnlab.cli import main as entry
from attnlab.errors import InvalidConfig
from attnlab.store import config_groups, experiment_files
from attnlab.sweep.plan import checker, config_files
from attnlab.training import preflight

QUESTION = "--metric loss --lower-is-better --margin 0.01"
DEEP = "[" * 50_000 + "]" * 50_000
LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)
)
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of tables, of which some cannot be read, as working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["attnlab"])
    write_table("a.csv", [3.0, 3.1, 3.2, 3.05])
    write_table("b.csv", [2.0, 2.1, 2.3, 2.05])
    write_table("huge.csv", [1e300, 1.1e300, 1.2e300, 1.3e300])
    (tmp_path / "deep.jsonl").write_text(f'{{"seed": 1, "loss": {DEEP}}}\n')
    (tmp_path / "deep.json").write_text(DEEP)
    (tmp_path / "eps.json").write_text(json.dumps(LLAMA | {"rms_norm_eps": -1}))
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    for suffix in ("csv", "jsonl", "parquet", "json", "yaml"):
        os.mkfifo(tmp_path / f"pipe.{suffix}")
    return tmp_path


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("judge pipe.csv b.csv QUESTION", "pipe.csv: is a pipe, not a regular file"),
        ("judge a.csv pipe.jsonl QUESTION", "pipe.jsonl: is a pipe, not a regular file"),
        ("judge pipe.parquet b.csv QUESTION", "pipe.parquet: is a pipe, not a regular file"),
        ("judge --noise pipe.csv --metric loss", "pipe.csv: is a pipe, not a regular file"),
        ("judge a.csv b.csv --declare pipe.json", "--declare pipe.json: is a pipe"),
        ("judge heads=mha pipe.yaml", "pipe.yaml: cannot be read: is a pipe"),
        ("judge deep.jsonl b.csv QUESTION", "deep.jsonl:1: not JSON: it is nested too deeply"),
        ("judge a.csv b.csv --declare deep.json", "nested too deeply"),
        (
            "judge a.csv huge.csv QUESTION",
            "huge.csv:2: loss is 1e+300 (a number is at most 1e+150)",
        ),
        (
            "judge --champion a.csv --log log.jsonl huge.csv QUESTION",
            "huge.csv:2: loss is 1e+300 (a number is at most 1e+150)",
        ),
        (
            "judge --champion a.csv --log /dev/null b.csv QUESTION",
            "--log /dev/null: is a device, not a regular file",
        ),
        (
            "judge --champion a.csv --log /proc/x b.csv QUESTION",
            "--log /proc/x: No such file or directory",
        ),
        (
            "judge --champion a.csv --log pipe.jsonl b.csv QUESTION",
            "--log pipe.jsonl: is a pipe, not a regular file",
        ),
        ("judge --champion a.csv --log deep.jsonl b.csv QUESTION", "deep.jsonl:1: not a"),
        ("cost pipe.json", "pipe.json: is a pipe, not a regular file: give a config.json"),
        ("cost /dev/zero", "/dev/zero: is a device, not a regular file: give a config.json"),
        ("cost deep.json", "deep.json: not JSON: it is nested too deeply"),
        ("cost eps.json", "eps.json: rms_norm_eps = -1: must be a finite number of at least 0"),
        ("cost llama.json --page pipe.json", "--page pipe.json: is a pipe, not a regular file"),
        ("cost llama.json --page /proc/self/mem", "--page /proc/self/mem: Input/output error"),
        (
            "new mask banded --into /proc/x",
            "/proc/x: No such file or directory; nothing was",
        ),
        ("corpus show data=text data.path=\"'a\0b'\"", "a path has a zero byte: remove it"),
        ("plan +=prefix", "+=prefix: names no key: write key=value"),
        ("plan heads@=mha", "heads@=mha: names no key: write key=value"),
        ("cost +@=x", "+@=x: names no key: write key=value"),
        ("check model.dim=0", "model.dim must be an integer from 1 to 2147483648, got 0"),
    ],
)
def test_unusable_file_or_word_is_one_line_and_changes_nothing(place, refuse, line, message):
    before = {path.name: path.lstat().st_mtime_ns for path in place.iterdir()}
    refuse(line.replace("QUESTION", QUESTION), message)
    after = {path.name: path.lstat().st_mtime_ns for path in place.iterdir() if path.suffix != ".lock"}
    assert after == before


@pytest.mark.usefixtures("place")
def test_costs_are_printed_although_their_page_cannot_be_written(refuse):
    message = "/proc/x: No such file or directory: choose another"
    refuse("cost llama.json --page /proc/x", message, prints=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"digests": ["a"]}, "digests"),
        ({"candidate": []}, "candidate"),
        ({"accepted": "?"}, "accepted"),
        ({"x": 1}, "x: Extra inputs are not permitted"),
        ({"runs": None}, "runs"),
    ],
)
def test_log_with_a_value_of_another_type_is_rejected_and_kept(place, capfd, refuse, change, problem):
    line = f"judge --champion a.csv --log log.jsonl b.csv {QUESTION}"
    assert entry.main(line.split()) in (0, 3, 4)
    capfd.readouterr()
    header, tests = map(json.loads, (place / "log.jsonl").read_text().splitlines())
    tests["tests"][0] |= change
    text = f"{json.dumps(header)}\n{json.dumps(tests)}\n"
    (place / "log.jsonl").write_text(text)
    refuse(line, problem)
    assert (place / "log.jsonl").read_text() == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x: &a [1, *a]\n", ":1: an alias refers to a value that contains it"),
        ("x: &a\n  y: *a\n", ":1: an alias refers to a value that contains it"),
        (LAUGHS, "expand to more than 1,000,000 values"),
        (f"x: {DEEP}\n", ":1: nested more than 100 levels deep"),
        ("x:\n" + "- " * 50_000 + "1\n", ":2: nested more than 100 levels deep"),
        ("x: &a [1, 2]\ny: [*a, *a]\n", None),
    ],
)
def test_yaml_that_would_never_end_or_end_the_process_is_rejected_with_its_line(place, text, problem):
    file = place / "mine.yaml"
    file.write_text(text)
    for load in (experiment_files.load_yaml_node, config_files.load_content):
        if problem is None:
            assert load(file)
            continue
        with pytest.raises(InvalidConfig) as caught:
            load(file)
        assert problem in str(caught.value)


@pytest.mark.parametrize("value", [".nan", "nan", "1", "[]", "{rungs: 1}"])
def test_ladder_that_is_none_is_one_line(place, refuse, value):
    folder = place / "conf" / "experiment"
    folder.mkdir(parents=True)
    text = f"# @package _global_\ndefaults: [gqa_vs_mha, _self_]\nname: mine\nladder: {value}\n"
    (folder / "mine.yaml").write_text(text)
    refuse("plan +experiment=mine --config-dir conf", "conf/experiment/mine.yaml:4: ladder")


def test_key_that_the_trainer_reads_cannot_be_deleted(compose):
    for group, keys in config_groups._REQUIRED_KEYS.items():
        for key in (*keys, None):
            config = compose()
            if key is None:
                del config[group]
            else:
                del config[group][key]
            name = f"{group}.{key}" if key else group
            with pytest.raises(InvalidConfig, match=f"^{re.escape(name)} is missing: set it"):
                preflight.check(config)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise SystemExit(3)", r"a part ends the program \(SystemExit\(3\)\)"),
        ("raise KeyboardInterrupt", r"a part ends the program \(KeyboardInterrupt\(\)\)"),
        ("__import__('os')._exit(3)", "the process that checks configs for exits ended with status 3"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "ended by signal 9"),
    ],
)
def test_part_that_exits_in_the_checker_is_one_line(place, monkeypatch, statement, message):
    functions = "run = measure_again = device_kind = verify = check\n"
    (place / "exits.py").write_text(f"def check(config):\n    {statement}\n\n\n{functions}")
    monkeypatch.syspath_prepend(str(place))
    sys.modules.pop("exits", None)
    with (
        checker.Checker(multiprocessing.get_context("fork"), "exits") as client,
        pytest.raises(InvalidConfig, match=message),
    ):
        client._query_child("exits", "check", {})


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.EMFILE, "Too many open files"), 1, "too many open files: raise the limit"),
        (MemoryError(), 1, "out of memory: free some"),
        (SystemExit(0), 2, "a part ends the program (SystemExit(0))"),
        (OSError(errno.EFBIG, "has 9 bytes", "big.json"), 2, "big.json: has 9 bytes"),
        (RecursionError("maximum recursion depth"), 1, "Traceback"),
        (OverflowError("a bug"), 1, "Traceback"),
        (FileNotFoundError(errno.ENOENT, "No such file", entry.__file__ + ".gone"), 1, "Traceback"),
    ],
)
@pytest.mark.usefixtures("place")
def test_lack_of_a_resource_is_one_line_and_a_bug_keeps_its_traceback(
    monkeypatch, capfd, error, status, message
):
    monkeypatch.setattr(entry, "run_hydra", Mock(side_effect=error))
    assert entry.main(["heads=mha"]) == status
    assert message in capfd.readouterr().err
