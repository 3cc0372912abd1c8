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


@pytest.fixture
def edited(tmp_path):
    """`edited(file, text)`: the hashed source of a trained run, with the text at the end of a file of ours."""
    home = Path(attnlab.__file__).parent
    shutil.copytree(home, tmp_path / "attnlab", ignore=shutil.ignore_patterns("__pycache__"))

    def source(file, text):
        if file:
            with (tmp_path / "attnlab" / file).open("a") as opened:
                opened.write(text)
        asked = [sys.executable, "-c", ASK]
        answer = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path)
        return json.loads(answer.stdout)

    return source


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
def test_comments_and_what_only_looks_leave_the_id(edited, file, text):
    assert edited(None, "") == edited(file, text)


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
def test_a_statement_of_what_trains_changes_the_id(edited, file, module):
    before, after = edited(None, ""), edited(file, STATEMENT)
    assert [name for name in before if before[name] != after.get(name)] == [f"attnlab.{module}"]
