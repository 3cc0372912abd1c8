"""A run folder that is somebody else's: nothing that it names is run, and its words move no cursor."""

import json
import sys

import pytest
from safetensors.torch import save_model

from attnlab.cli import main as entry
from attnlab.model.build import build_model, make
from attnlab.store import runs
from attnlab.store.schema import RunSpec

RUN = "0123456789abcdef"
VERBS = {"generate": "prompt=the ", "inspect": "text=the fox"}


@pytest.fixture
def folder(compose, tmp_path, monkeypatch):
    """A tiny run, untrained, and a user who has trusted nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config = compose()
    model = build_model(config, make(config["data"]).task.vocab_size)
    runs.write_spec(tmp_path / "runs", RunSpec(id=RUN, config=config))
    save_model(model, str(tmp_path / "runs" / RUN / "model.safetensors"))
    return tmp_path / "runs" / RUN


def put(folder, change):
    """The stored spec, changed."""
    spec = json.loads((folder / "spec.json").read_text())
    change(spec["config"])
    (folder / "spec.json").write_text(json.dumps(spec))


def harm(folder):
    """Something to do, and where it shows."""
    return {"_target_": "os.mkdir", "path": str(folder / "harmed")}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", ["checkpoint", "run"])
@pytest.mark.parametrize("key", ["data", "model", "decode"])
def test_nothing_that_a_strangers_run_names_is_run(folder, capfd, verb, place, key):
    put(folder, lambda config: config[key].update(strange=harm(folder)))
    where = f"run={RUN[:5]}" if place == "run" else f"checkpoint={folder}"
    assert entry.main([verb, where, VERBS[verb]]) == 2
    out, err = capfd.readouterr()
    assert not (folder / "harmed").exists()
    assert out == ""
    assert err.count("\n") == 1
    for told in ("os.mkdir", "spec.json", f"{key}.strange._target_"):
        assert told in err


def test_a_module_of_ones_own_is_run_once_it_is_trusted_and_the_message_says_how(
    folder, tmp_path, capfd, monkeypatch
):
    text = (
        "from attnlab.attention.masks.window import window\n\ndef banded(width):\n    return window(width)\n"
    )
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    banded = {"_target_": "mine.banded", "width": 4}
    put(folder, lambda config: config["model"]["attention"]["masks"].update(banded=banded))
    line = ["generate", f"run={RUN}", "prompt=the ", "new_tokens=3"]
    assert entry.main(line) == 2
    assert "mine" not in sys.modules
    assert "say --trust mine once" in capfd.readouterr().err
    assert entry.main([*line, "--trust", "mine"]) == 0
    assert entry.main(line) == 0
    assert capfd.readouterr().out.startswith("the ")
    sys.modules.pop("mine")


def test_trust_alone_is_a_command(folder, capfd, tmp_path):
    assert entry.main(["--trust=mine"]) == 0
    assert str(tmp_path / "config" / "attnlab" / "trusted") in capfd.readouterr().err
    assert entry.main(["--trust", "os"]) == 2
    assert entry.main(["--trust"]) == 2
