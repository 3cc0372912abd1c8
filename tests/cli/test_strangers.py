"""A run folder that is somebody else's: nothing that it names is run, and its words move no cursor."""

import json
import sys
import time

import pytest
from untrained import write_untrained

from attnlab.cli import main as entry

RUN = "0123456789abcdef"
VERBS = {"generate": "prompt=the ", "inspect": "text=the fox"}


@pytest.fixture
def folder(compose, tmp_path, monkeypatch):
    """A tiny run, untrained, and a user who has trusted nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config = compose()
    return write_untrained(tmp_path / "runs", RUN, config)


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
    (tmp_path / "mine.py").write_text("raise SystemExit('it is not imported')")
    assert entry.main(["--trust=mine"]) == 0
    assert str(tmp_path / "config" / "attnlab" / "trusted") in capfd.readouterr().err
    assert entry.main(["--trust", "os"]) == 2
    assert entry.main(["--trust"]) == 2
    assert entry.main(["--trust", "mind"]) == 2
    assert "there is no such module" in capfd.readouterr().err
    assert (tmp_path / "config" / "attnlab" / "trusted").read_text() == "mine\n"


ESCAPE = "\x1b]0;owned\x07\x9b2J"


def test_what_a_strangers_model_writes_and_is_called_moves_no_cursor(folder, tmp_path, capfd):
    """Its vocabulary, its folder and its config are the stranger's; newlines and tabs stay."""
    (tmp_path / "book.txt").write_text(("the fox\n\tjumps" + ESCAPE) * 400)
    spec = json.loads((folder / "spec.json").read_text())
    write_untrained(folder.parent, RUN, spec["config"])
    named = folder.rename(folder.with_name(f"called{ESCAPE}"))
    texts = []
    for line in (
        ["generate", f"checkpoint={named}", f"prompt=the\n{ESCAPE}", "new_tokens=60", "temperature=50"],
        ["inspect", f"checkpoint={named}", f"text=the{ESCAPE}", f"to={tmp_path}/page{ESCAPE}"],
    ):
        status = entry.main(line)
        out, err = capfd.readouterr()
        assert status == 0, err
        texts.append(out)
    assert texts[0].startswith("the\n\\x1b]0;owned\\x07\\x9b2J")
    assert not {"\x1b", "\x07", "\x9b"} & {*"".join(texts)}
    spec = json.loads((named / "spec.json").read_text())
    spec["config"]["model"]["strange"] = {"_target_": f"os.{ESCAPE}"}
    (named / "spec.json").write_text(json.dumps(spec))
    assert entry.main(["inspect", f"checkpoint={named}", "text=the"]) == 2
    err = capfd.readouterr().err
    assert not {"\x1b", "\x07", "\x9b"} & {*err}
    assert err.count("\n") == 1


def test_what_a_strangers_config_folder_says_moves_no_cursor(tmp_path, capfd):
    group = tmp_path / "conf" / "experiment"
    group.mkdir(parents=True)
    (group / "own.yaml").write_text('question: "why\\e[2J?"\n')
    (group / "dear.yaml").write_text(f"# Cost: much{ESCAPE}\n")
    assert entry.main(["list", "experiments", "--config-dir", str(tmp_path / "conf")]) == 0
    out = capfd.readouterr().out
    assert "why\\x1b[2J?" in out
    assert not {"\x1b", "\x07", "\x9b"} & {*out}


@pytest.mark.parametrize("word", ["new_tokens=100000000", "threads=1000000", "threads=" + "9" * 5000])
def test_what_would_never_end_is_refused_in_a_line(capfd, word):
    assert entry.main(["generate", "run=a", "prompt=the", word]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "it must be at most" in err


@pytest.mark.parametrize(("key", "size"), [("n_layers", 10**6), ("dim", 10**6), ("ffn_width", 10**15)])
def test_a_size_in_a_strangers_config_is_compared_with_its_weights(folder, capfd, key, size):
    put(folder, lambda config: config["model"].update({key: size}))
    began = time.process_time()
    assert entry.main(["inspect", f"run={RUN}", "text=the"]) == 2
    assert time.process_time() - began < 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "model.safetensors cannot be loaded: " in err
