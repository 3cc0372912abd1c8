"""The check of `make lint` finds every listed phrase, wherever people read it, and nothing in code."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / ".ci" / "wording"
RULES = tomllib.loads((CHECK / "phrases.toml").read_text("utf-8"))
PHRASES = [pattern for rule in RULES.values() for pattern in rule["patterns"]]
[FIRST, *_], [WHAT] = (rule["patterns"] for rule in RULES.values())


def run_check(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("pattern", PHRASES)
def test_each_phrase_is_found_across_a_line_break(tmp_path, pattern):
    phrase = pattern.replace("(is|are)", "are").replace(r"\w", "4").capitalize()
    result = run_check(tmp_path, {"docs/page.md": f"# A page\n\nIt was {phrase.replace(' ', chr(10), 1)}.\n"})
    assert result.returncode == 1
    assert f"docs/page.md:3: {phrase}\n" in result.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "x = 1\n\ndef f():\n    '''Return y.\n\n    {} it.\n    '''\n"),
        ("a.py", "x = 1\n\n\n# one line\n# and\n# {}\n"),
        ("a.py", "x = 1\n\n\n\n\nraise ValueError(f'a model {x} {}')\n"),
        ("a.yaml", "a: b\n\n\n\n\nsays: it is {}\n"),
        ("a.yaml", "a: b\n\n\n\n\nc: d  # it is {}\n"),
        ("Makefile", "a:\n\techo\n\n\n\nb:  ## it is {}\n"),
        ("a.html", "<p>\n\n\n\n\nit is {{ x }} {}"),
    ],
)
def test_phrases_are_found_where_people_read_them(tmp_path, name, text):
    result = run_check(tmp_path, {name: text.replace("{}", FIRST)})
    assert result.returncode == 1
    assert f"{name}:6: {FIRST}\n" in result.stdout


def test_code_and_stored_reports_do_not_count(tmp_path):
    files = {
        "a.md": f"# A page\n\n```\n{FIRST}\n```\n\nIt is `{FIRST}`.\n",
        "a.py": f"def {FIRST}(): ...\n",
        "reports/reference/one/report.md": f"It was {FIRST}.\n",
    }
    result = run_check(tmp_path, files)
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 1), result.stdout


def test_limits_apply_per_folder(tmp_path):
    """One hit in 1,000 words is above the limit of phrases and below that of "what"."""
    words = "word " * 999
    result = run_check(tmp_path, {"docs/a.md": f"{words} {FIRST}", "tests/a.md": f"{words} {WHAT}"})
    assert result.stdout.splitlines() == [
        "docs: 1000 words; per 1,000: phrases 1.00 (limit 0.3), what 0.00 (limit 2.0)",
        "tests: 1000 words; per 1,000: phrases 0.00 (limit 0.3), what 1.00 (limit 2.0)",
        f"docs/a.md:1: {FIRST}",
    ]
