"""An edit of attnlab itself: which change the id of a trained run, and which leave it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnlab

ASK = """
import json, os, sys
from attnlab.store import fingerprint
part = lambda name: {"_target_": f"attnlab.{name}"}
config = {
    "model": {**part("model.transformer.Transformer"), "attention": part("attention.layer.Attention")},
    "optim": part("training.module.LanguageModel"), "data": part("data.module.Data"),
}
for _ in sys.stdin:  # each answer from a process of its own, which has read nothing before
    if os.fork() == 0:
        print(json.dumps(fingerprint.source(config, "attnlab.training.run")), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
STATEMENT, COMMENT = "\nCHANGED = 1\n", "\n# changed\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A copy of attnlab, to edit."""
    folder = tmp_path_factory.mktemp("home")
    ours = Path(attnlab.__file__).parent
    shutil.copytree(ours, folder / "attnlab", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def source(home):
    """`source()`: module -> digest, what of the copy's source the id of a trained run is made of."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ASK], stdin=pipe, stdout=pipe, text=True, cwd=home) as asked:

        def ask():
            print(file=asked.stdin, flush=True)
            return json.loads(asked.stdout.readline())

        yield ask


@pytest.fixture(scope="module")
def before(source):
    return source()


@pytest.fixture
def edited(home, source):
    """`edited(file, text)`: the source with this text at the end of a file."""
    kept = {}

    def edit(file, text):
        path = home / "attnlab" / file
        kept[path] = path.read_text()
        path.write_text(kept[path] + text)
        return source()

    yield edit
    for path, text in kept.items():
        path.write_text(text)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("attention/layer.py", COMMENT),
        ("training/run.py", COMMENT),
        ("training/callbacks.py", STATEMENT),
        ("training/loggers/wandb.py", STATEMENT),
        ("training/record.py", STATEMENT),
        ("measure/heads.py", STATEMENT),
        ("report/build.py", STATEMENT),
        ("sweep/engine.py", STATEMENT),
    ],
)
def test_comments_and_what_only_looks_leave_the_id(before, edited, file, text):
    assert edited(file, text) == before


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("attention/layer.py", "attention.layer"),
        ("attention/contracts.py", "attention.contracts"),
        ("model/transformer.py", "model.transformer"),
        ("training/module.py", "training.module"),
        ("training/run.py", "training.run"),
        ("store/seeds.py", "store.seeds"),
        ("data/module.py", "data.module"),
    ],
)
def test_a_statement_of_what_trains_changes_the_id(before, edited, file, module):
    after = edited(file, STATEMENT)
    assert [name for name in before if before[name] != after.get(name)] == [f"attnlab.{module}"]
