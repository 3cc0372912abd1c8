"""Edits of attnlab itself: training code changes the id of a run, observers and comments do not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnlab

SCRIPT = """
import json, os, sys
from attnlab.store import fingerprint
part = lambda name: {"_target_": f"attnlab.{name}"}
config = {
    "model": {**part("model.transformer.Transformer"), "attention": part("attention.layer.Attention")},
    "optim": part("training.language_model.LanguageModel"), "data": part("data.data_module.DataModule"),
}
for _ in sys.stdin:  # a fresh process per line, with empty caches
    if os.fork() == 0:
        print(json.dumps(fingerprint.hash_run_source(config, "attnlab.training.run")), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
STATEMENT, COMMENT = "\nCHANGED = 1\n", "\n# changed\n"


@pytest.fixture(scope="module")
def package_copy(tmp_path_factory):
    """A copy of attnlab to edit."""
    folder = tmp_path_factory.mktemp("package_copy")
    package = Path(attnlab.__file__).parent
    shutil.copytree(package, folder / "attnlab", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def hash_copy(package_copy):
    """`hash_copy()`: module -> digest of the copy's source that the id of a training run hashes."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=package_copy) as process:

        def compute():
            print(file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield compute


@pytest.fixture(scope="module")
def digests_before(hash_copy):
    return hash_copy()


@pytest.fixture
def edit_file(package_copy, hash_copy):
    """`edit_file(file, text)`: the digests after appending this text to a file."""
    originals = {}

    def edit(file, text):
        path = package_copy / "attnlab" / file
        originals[path] = path.read_text()
        path.write_text(originals[path] + text)
        return hash_copy()

    yield edit
    for path, text in originals.items():
        path.write_text(text)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("attention/layer.py", COMMENT),
        ("training/run.py", COMMENT),
        ("training/callbacks.py", STATEMENT),
        ("training/loggers/wandb_logger.py", STATEMENT),
        ("training/run_result.py", STATEMENT),
        ("measure/head_scoring.py", STATEMENT),
        ("report/report_builder.py", STATEMENT),
        ("sweep/engine.py", STATEMENT),
    ],
)
def test_comments_and_observers_leave_the_id(digests_before, edit_file, file, text):
    assert edit_file(file, text) == digests_before


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("attention/layer.py", "attention.layer"),
        ("attention/contracts.py", "attention.contracts"),
        ("model/transformer.py", "model.transformer"),
        ("training/language_model.py", "training.language_model"),
        ("training/run.py", "training.run"),
        ("store/seeds.py", "store.seeds"),
        ("data/data_module.py", "data.data_module"),
    ],
)
def test_a_statement_of_training_code_changes_the_id(digests_before, edit_file, file, module):
    after = edit_file(file, STATEMENT)
    changed = [name for name in digests_before if digests_before[name] != after.get(name)]
    assert changed == [f"attnlab.{module}"]
