"""Untrusted run folders: no code that they name is executed, and their text cannot control the terminal."""

import json
import sys
import time

import pytest
from stored_runs import make_spec, write_spec
from untrained import write_untrained

from attnlab.cli import main as entry
from attnlab.store import run_directories

VERBS = {"generate": "prompt=the ", "inspect": "text=the fox"}


@pytest.fixture
def folder(compose, tmp_path, monkeypatch):
    """A tiny untrained run, and a user who trusts no module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return write_untrained(tmp_path / "runs", compose())


def change_config(folder, change):
    """Give the run another config, with the id that follows from it, and return its folder."""
    spec = run_directories.load_run_config(folder)
    change(spec.config)
    changed = make_spec(spec.config, estimate=spec.estimate)
    folder.rename(folder.with_name(changed.id))
    return write_spec(folder.parent, changed)


def make_harmful_target(folder):
    """Return a target whose execution leaves a folder."""
    return {"_target_": "os.mkdir", "path": str(folder / "harmed")}


@pytest.mark.parametrize("verb", [*VERBS, "export", "cost"])
def test_edited_config_of_a_run_is_rejected_by_every_verb_that_builds_it(folder, capfd, verb):
    spec = json.loads((folder / "spec.json").read_text())
    base = spec["config"]["model"]["attention"]["rotary"]["base"]
    spec["config"]["model"]["attention"]["rotary"]["base"] = 50
    (folder / "spec.json").write_text(json.dumps(spec))
    words = [str(folder)] if verb == "cost" else [f"run={folder.name}", VERBS.get(verb, "to=exported")]
    assert entry.main([verb, *words]) == 2
    out, err = capfd.readouterr()
    file = folder / "spec.json" if verb == "cost" else "runs/" + folder.name + "/spec.json"
    message = f"model.attention.rotary.base is 50, its run was planned with {base}"
    assert (out, err) == ("", f"attnlab: {file} was edited: {message}: run the experiment's command again\n")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", ["checkpoint", "run"])
@pytest.mark.parametrize("key", ["data", "model", "decode"])
def test_targets_of_an_untrusted_run_are_not_executed(folder, capfd, verb, place, key):
    harmful = make_harmful_target(folder.parent)
    folder = change_config(folder, lambda config: config[key].update(strange=harmful))
    selection = f"run={folder.name[:5]}" if place == "run" else f"checkpoint={folder}"
    assert entry.main([verb, selection, VERBS[verb]]) == 2
    out, err = capfd.readouterr()
    assert not (folder.parent / "harmed").exists()
    assert out == ""
    assert err.count("\n") == 1
    for fragment in ("os.mkdir", "spec.json", f"{key}.strange._target_"):
        assert fragment in err


def test_user_module_runs_after_it_is_trusted_as_the_message_explains(folder, tmp_path, capfd, monkeypatch):
    module_text = (
        "from attnlab.attention.masks.window import window\n\ndef banded(width):\n    return window(width)\n"
    )
    (tmp_path / "mine.py").write_text(module_text)
    monkeypatch.syspath_prepend(str(tmp_path))
    banded = {"_target_": "mine.banded", "width": 4}
    folder = change_config(folder, lambda config: config["model"]["attention"]["masks"].update(banded=banded))
    line = ["generate", f"run={folder.name}", "prompt=the ", "new_tokens=3"]
    assert entry.main(line) == 2
    assert "mine" not in sys.modules
    assert "run attnlab --trust mine once" in capfd.readouterr().err
    assert entry.main([*line, "--trust", "mine"]) == 0
    assert entry.main(line) == 0
    assert capfd.readouterr().out.startswith("the ")
    sys.modules.pop("mine")


def test_trust_flag_is_a_command_on_its_own(folder, capfd, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('it is not imported')")
    assert entry.main(["--trust=mine"]) == 0
    assert str(tmp_path / "config" / "attnlab" / "trusted") in capfd.readouterr().err
    for library in ("os", "torch", "numpy", "yaml", "pip", "__main__"):
        assert entry.main(["--trust", library]) == 2
        assert capfd.readouterr().err.count("\n") == 1
    assert entry.main(["--trust"]) == 2
    assert entry.main(["--trust", "mind"]) == 2
    assert "module not found" in capfd.readouterr().err
    assert (tmp_path / "config" / "attnlab" / "trusted").read_text() == "mine\n"


ESCAPE = "\x1b]0;owned\x07\x9b2J"


def test_output_of_an_untrusted_model_has_no_control_characters(folder, tmp_path, capfd):
    """Vocabulary, folder name and config are untrusted; newlines and tabs are kept."""
    (tmp_path / "book.txt").write_text(("the fox\n\tjumps" + ESCAPE) * 400)
    folder = write_untrained(tmp_path / f"called{ESCAPE}", run_directories.load_run_config(folder).config)
    outputs = []
    for line in (
        [
            "generate",
            f"checkpoint={folder}",
            f"prompt=the\n{ESCAPE}",
            "new_tokens=60",
            "temperature=50",
        ],
        ["inspect", f"checkpoint={folder}", f"text=the{ESCAPE}", f"to={tmp_path}/page{ESCAPE}"],
    ):
        status = entry.main(line)
        out, err = capfd.readouterr()
        assert status == 0, err
        outputs.append(out)
    assert outputs[0].startswith("the\n\\x1b]0;owned\\x07\\x9b2J")
    assert not {"\x1b", "\x07", "\x9b"} & {*"".join(outputs)}
    spec = json.loads((folder / "spec.json").read_text())
    spec["config"]["model"]["strange"] = {"_target_": f"os.{ESCAPE}"}
    (folder / "spec.json").write_text(json.dumps(spec))
    assert entry.main(["inspect", f"checkpoint={folder}", "text=the"]) == 2
    err = capfd.readouterr().err
    assert not {"\x1b", "\x07", "\x9b"} & {*err}
    assert err.count("\n") == 1


def test_text_of_an_untrusted_config_folder_has_no_control_characters(tmp_path, capfd):
    group = tmp_path / "conf" / "experiment"
    group.mkdir(parents=True)
    (group / "own.yaml").write_text('question: "why\\e[2J?"\n')
    (group / "dear.yaml").write_text(f"# Cost: much{ESCAPE}\n")
    assert entry.main(["list", "experiments", "--config-dir", str(tmp_path / "conf")]) == 0
    out = capfd.readouterr().out
    assert "why\\x1b[2J?" in out
    assert not {"\x1b", "\x07", "\x9b"} & {*out}


@pytest.mark.parametrize("word", ["new_tokens=100000000", "threads=1000000", "threads=" + "9" * 5000])
def test_excessive_numbers_are_rejected_in_one_line(capfd, word):
    assert entry.main(["generate", "run=a", "prompt=the", word]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "must be at most" in err


@pytest.mark.parametrize(("key", "size"), [("n_layers", 10**6), ("dim", 10**6), ("ffn_width", 10**15)])
def test_sizes_of_an_untrusted_config_are_compared_with_the_weights(folder, capfd, key, size):
    folder = change_config(folder, lambda config: config["model"].update({key: size}))
    start_time = time.process_time()
    assert entry.main(["inspect", f"run={folder.name}", "text=the"]) == 2
    assert time.process_time() - start_time < 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "model.safetensors cannot be loaded: " in err
