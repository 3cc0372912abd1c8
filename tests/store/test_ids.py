"""An edit of attnlab itself: which change the id of a trained run, and which leave it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnlab

ASK = """
import json, sys
from attnlab.store import fingerprint
part = lambda name: {"_target_": f"attnlab.{name}"}
config = {
    "model": {**part("model.transformer.Transformer"), "attention": part("attention.layer.Attention")},
    "optim": part("training.module.LanguageModel"), "data": part("data.module.Data"),
}
print(json.dumps(fingerprint.source(config, "attnlab.training.run")))
"""
STATEMENT, COMMENT = "\nCHANGED = 1\n", "\n# changed\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A copy of attnlab, to edit."""
    folder = tmp_path_factory.mktemp("home")
    ours = Path(attnlab.__file__).parent
    shutil.copytree(ours, folder / "attnlab", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def source(home):
    """Module -> digest: what of the copy's source the id of a trained run is made of."""
    asked = [sys.executable, "-c", ASK]
    return json.loads(subprocess.run(asked, capture_output=True, text=True, check=True, cwd=home).stdout)


@pytest.fixture(scope="module")
def before(home):
    return source(home)


@pytest.fixture
def edited(home):
    """`edited(file, text)`: the source with this text at the end of a file."""
    kept = {}

    def edit(file, text):
        path = home / "attnlab" / file
        kept[path] = path.read_text()
        path.write_text(kept[path] + text)
        return source(home)

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
