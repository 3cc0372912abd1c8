"""What messages, docstrings and shipped files tell a reader to type is there to be typed."""

import ast
import re
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

import attnlab
from attnlab.cli.commands import VERBS, parsers
from attnlab.config import CONF

HOME = Path(attnlab.__file__).parent
GAP = "\0"  # where a value is put into a text
FLAGS_OF_HYDRA = ("--help", "--cfg", "--config-dir", "--config-path", "--config-name")
HIDDEN = ("show", "command", "train")  # of `sweep`: set by verbs, and by who brings another trainer


def said(path):
    """Every text of a module: f-strings with gaps, pieces that stand beside each other joined."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def texts():
    """Place -> texts, of attnlab's source and of what ships beside it."""
    folders = (HOME, HOME.parent / "hydra_plugins")
    found = {path: list(said(path)) for folder in folders for path in folder.rglob("*.py")}
    shipped = [
        path
        for folder in ("conf", "docs", "sweeps")
        for path in (HOME.parent / folder).rglob("*")
        if path.suffix in (".yaml", ".md", ".sh", ".sbatch")
    ]
    ours = [*shipped, HOME.parent / "README.md", HOME.parent / "CONTRIBUTING.md"]
    return found | {path: [path.read_text("utf-8")] for path in ours}


@cache
def flags():
    """Verb -> its flags."""
    return {name: {*parser._option_string_actions, *FLAGS_OF_HYDRA} for name, parser in parsers()[1].items()}


def unknown(text):
    """The verbs and flags that a text has typed after `python -m attnlab`, and that are not there."""
    for command in re.findall(r"python -m attnlab +([^\n`\"#;|]+)", text):
        first, *rest = command.split()
        if not re.fullmatch(r"[a-z][a-z_]*[.,:)]?", first):
            continue  # an override, a flag of Hydra's, a gap, a name in capitals
        verb = first.rstrip(".,:)")
        if verb not in VERBS:
            yield verb
        for word in rest:
            flag = re.match(r"\[?(--[a-z][a-z-]*)", word)
            if flag and verb in VERBS and flag[1] not in flags()[verb]:
                yield f"{verb} {flag[1]}"


def test_a_verb_or_flag_that_is_not_there_is_found():
    assert list(unknown("see `python -m attnlab watch heads=mha`")) == ["watch"]
    assert list(unknown("python -m attnlab status ... --wach, or not")) == ["status --wach"]
    assert not list(
        unknown("python -m attnlab status +experiment=x --watch; python -m attnlab +experiment=y")
    )


def test_every_verb_and_flag_that_a_text_names_is_there():
    found = texts()
    assert len(found) > 200
    named = {
        f"{path.name}: {word}"
        for path, all_of_it in found.items()
        for text in all_of_it
        for word in unknown(text.replace(GAP, "VALUE"))
    }
    assert not named


def test_every_key_of_the_sweep_that_a_message_names_is_there():
    shipped = OmegaConf.load(CONF / "config.yaml").sweep
    named = {
        key
        for path in HOME.rglob("*.py")
        for text in said(path)
        for key in re.findall(r"\bsweep\.([a-z_]+)=", text)
    }
    assert named - {*shipped, *HIDDEN} == set()
    assert "retry_failed" in named


def test_verbs_in_backticks_at_the_head_of_a_module_are_verbs():
    for path in (HOME / "cli" / "verbs").glob("[a-z]*.py"):
        head = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        first = head.split(":")[0]
        for verb in re.findall(r"`(?:python -m attnlab )?([a-z]+)`", first):
            assert verb in VERBS, path
