"""Verbs, flags and keys in messages, docstrings and shipped files exist."""

import ast
import re
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

import attnlab
from attnlab.cli.commands import VERBS, build_parsers
from attnlab.config import CONF

HOME = Path(attnlab.__file__).parent
GAP = "\0"  # stands for an interpolated value
FLAGS_OF_HYDRA = ("--help", "--cfg", "--config-dir", "--config-path", "--config-name")
HIDDEN = ("show", "command", "train", "work")  # keys of `sweep` set by verbs and custom trainers


def iter_strings(path):
    """Yield every string of a module; f-strings have gaps for their values."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def collect_texts():
    """Collect the strings of attnlab's source and of shipped files, by path."""
    folders = (HOME, *(HOME.parent / name for name in ("benchmarks", "hydra_plugins")))
    texts_by_path = {path: list(iter_strings(path)) for folder in folders for path in folder.rglob("*.py")}
    shipped_keys = [
        path
        for folder in ("conf", "docs", "sweeps")
        for path in (HOME.parent / folder).rglob("*")
        if path.suffix in (".yaml", ".md", ".sh", ".sbatch")
    ]
    documents = [*shipped_keys, HOME.parent / "README.md", HOME.parent / "CONTRIBUTING.md"]
    return texts_by_path | {path: [path.read_text("utf-8")] for path in documents}


@cache
def collect_flags():
    """Collect the flags of each verb."""
    return {
        name: {*parser._option_string_actions, *FLAGS_OF_HYDRA} for name, parser in build_parsers()[1].items()
    }


def find_unknown(text):
    """Yield unknown verbs and flags after `python -m attnlab` in a text."""
    for command in re.findall(r"python -m attnlab +([^\n`\"#;|]+)", text):
        first, *rest = command.split()
        if not re.fullmatch(r"[a-z][a-z_]*[.,:)]?", first):
            continue  # an override, a Hydra flag, a gap, or a placeholder
        verb = first.rstrip(".,:)")
        if verb not in VERBS:
            yield verb
        for word in rest:
            flag = re.match(r"\[?(--[a-z][a-z-]*)", word)
            if flag and verb in VERBS and flag[1] not in collect_flags()[verb]:
                yield f"{verb} {flag[1]}"


def test_unknown_verbs_and_flags_are_detected():
    assert list(find_unknown("see `python -m attnlab watch heads=mha`")) == ["watch"]
    assert list(find_unknown("python -m attnlab status ... --wach, or not")) == ["status --wach"]
    assert not list(
        find_unknown("python -m attnlab status +experiment=x --watch; python -m attnlab +experiment=y")
    )


def test_every_mentioned_verb_and_flag_exists():
    texts_by_path = collect_texts()
    assert len(texts_by_path) > 200
    mentions = {
        f"{path.name}: {word}"
        for path, texts in texts_by_path.items()
        for text in texts
        for word in find_unknown(text.replace(GAP, "VALUE"))
    }
    assert not mentions


def test_every_mentioned_sweep_key_exists():
    shipped_keys = OmegaConf.load(CONF / "config.yaml").sweep
    mentions = {
        key
        for path in HOME.rglob("*.py")
        for text in iter_strings(path)
        for key in re.findall(r"\bsweep\.([a-z_]+)=", text)
    }
    assert mentions - {*shipped_keys, *HIDDEN} == set()
    assert "retry_failed" in mentions


def test_verbs_in_module_docstrings_exist():
    for path in (HOME / "cli" / "verbs").glob("[a-z]*.py"):
        head = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        first = head.split(":")[0]
        for verb in re.findall(r"`(?:python -m attnlab )?([a-z]+)`", first):
            assert verb in VERBS, path
