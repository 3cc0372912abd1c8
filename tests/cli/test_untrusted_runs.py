"""Untrusted run folders: no code that they name is executed, and their text cannot control the terminal."""

import json
import sys
import time

import pytest
from stored_runs import make_spec, write_spec
from untrained import write_untrained

from attnlab.cli import main as entry
from attnlab.store import run_directories

VERBS = ("generate prompt='the '", "inspect text='the fox'")


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


@pytest.mark.parametrize("verb", [*VERBS, "export to=exported", "cost"])
def test_edited_config_of_a_run_is_rejected_by_every_verb_that_builds_it(folder, refuse, verb):
    spec = json.loads((folder / "spec.json").read_text())
    rotary = spec["config"]["model"]["attention"]["rotary"]
    base, rotary["base"] = rotary["base"], 50
    (folder / "spec.json").write_text(json.dumps(spec))
    file = folder / "spec.json" if verb == "cost" else f"runs/{folder.name}/spec.json"
    message = f"model.attention.rotary.base is 50, its run was planned with {base}"
    err = refuse(f"{verb} {folder if verb == 'cost' else f'run={folder.name}'}")
    assert err == f"attnlab: {file} was edited: {message}: run the experiment's command again\n"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", ["checkpoint", "run"])
@pytest.mark.parametrize("key", ["data", "model", "decode"])
def test_targets_of_an_untrusted_run_are_not_executed(folder, refuse, tmp_path, verb, place, key):
    harmful = {"_target_": "os.mkdir", "path": str(tmp_path / "harmed")}
    folder = change_config(folder, lambda config: config[key].update(strange=harmful))
    selection = f"run={folder.name[:5]}" if place == "run" else f"checkpoint={folder}"
    refuse(f"{verb} {selection}", "os.mkdir", "spec.json", f"{key}.strange._target_")
    assert not (tmp_path / "harmed").exists()


def test_user_module_runs_after_it_is_trusted_as_the_message_explains(
    folder, tmp_path, capfd, refuse, monkeypatch
):
    (tmp_path / "mine.py").write_text(
        "from attnlab.attention.masks.window import window\n\ndef banded(width):\n    return window(width)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    banded = {"_target_": "mine.banded", "width": 4}
    folder = change_config(folder, lambda config: config["model"]["attention"]["masks"].update(banded=banded))
    line = ["generate", f"run={folder.name}", "prompt=the ", "new_tokens=3"]
    refuse(line, "run attnlab --trust mine once")
    assert "mine" not in sys.modules
    assert entry.main([*line, "--trust", "mine"]) == entry.main(line) == 0
    assert capfd.readouterr().out.startswith("the ")
    sys.modules.pop("mine")


def test_trust_flag_is_a_command_on_its_own(folder, capfd, refuse, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('it is not imported')")
    trusted = tmp_path / "config" / "attnlab" / "trusted"
    assert entry.main(["--trust=mine"]) == 0
    assert str(trusted) in capfd.readouterr().err
    for library in ("os", "torch", "numpy", "yaml", "pip", "__main__", ""):
        refuse(f"--trust {library}")
    refuse("--trust mind", "module not found")
    assert trusted.read_text() == "mine\n"


ESCAPE = "\x1b]0;owned\x07\x9b2J"
CONTROL = {"\x1b", "\x07", "\x9b"}


def test_output_of_an_untrusted_model_has_no_control_characters(folder, tmp_path, capfd, refuse):
    """Vocabulary, folder name and config are untrusted; newlines and tabs are kept."""
    (tmp_path / "book.txt").write_text(("the fox\n\tjumps" + ESCAPE) * 400)
    folder = write_untrained(tmp_path / f"called{ESCAPE}", run_directories.load_run_config(folder).config)
    inspect = ["inspect", f"checkpoint={folder}", f"text=the{ESCAPE}", f"to={tmp_path}/page{ESCAPE}"]
    words = [f"checkpoint={folder}", f"prompt=the\n{ESCAPE}", "new_tokens=60", "temperature=50"]
    assert entry.main(["generate", *words]) == entry.main(inspect) == 0
    out = capfd.readouterr().out
    assert out.startswith("the\n\\x1b]0;owned\\x07\\x9b2J")
    assert not CONTROL & {*out}
    spec = json.loads((folder / "spec.json").read_text())
    spec["config"]["model"]["strange"] = {"_target_": f"os.{ESCAPE}"}
    (folder / "spec.json").write_text(json.dumps(spec))
    assert not CONTROL & {*refuse(inspect)}


def test_text_of_an_untrusted_config_folder_has_no_control_characters(tmp_path, capfd):
    group = tmp_path / "conf" / "experiment"
    group.mkdir(parents=True)
    (group / "own.yaml").write_text('question: "why\\e[2J?"\n')
    (group / "dear.yaml").write_text(f"# Cost: much{ESCAPE}\n")
    assert entry.main(["list", "experiments", "--config-dir", str(tmp_path / "conf")]) == 0
    out = capfd.readouterr().out
    assert ("why\\x1b[2J?" in out, CONTROL & {*out}) == (True, set())


@pytest.mark.parametrize("word", ["new_tokens=100000000", "threads=1000000", "threads=" + "9" * 5000])
def test_excessive_numbers_are_rejected_in_one_line(refuse, word):
    refuse(f"generate run=a prompt=the {word}", "must be at most")


@pytest.mark.parametrize(("key", "size"), [("n_layers", 10**6), ("dim", 10**6), ("ffn_width", 10**15)])
def test_sizes_of_an_untrusted_config_are_compared_with_the_weights(folder, refuse, key, size):
    folder = change_config(folder, lambda config: config["model"].update({key: size}))
    start_time = time.process_time()
    refuse(f"inspect run={folder.name} text=the", "model.safetensors cannot be loaded: ")
    assert time.process_time() - start_time < 2
