"""Count phrases that have a plainer form, per folder; exit with 1 where a folder exceeds a limit.

phrases.toml beside this file lists the phrases and the limits. Counted are Markdown without its code,
comments, docstrings, and strings that contain a space: messages, help texts, claims. Stored reports are
excluded.

`python .ci/wording FOLDER` checks another tree.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

RULES_FILE = Path(__file__).with_name("phrases.toml")
ROOT = RULES_FILE.parents[2]
EXCLUDED = re.compile(
    r"LICENSE|constraints\.txt|\.ci/wording/phrases\.toml|.+\.(json|ipynb|csv|png|npz)"
    r"|reports/reference/.+/(?!README\.md).+"  # stored reports are an archive
)
MARKDOWN_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)\n]*\)", re.MULTILINE | re.DOTALL)
HTML_CODE = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>|{[{%].*?[%}]}", re.DOTALL)
COMMENT_OR_STRING = re.compile(
    r'"""(?s:.*?)"""|"[^"\n]* [^"\n]*"|\'[^\'\n]* [^\'\n]*\''
    r"|/\*(?s:.*?)\*/|(?:#|//)[ #].*(?:\n *(?:#|//) .*)*"
)
COMMENT_MARKER = re.compile(r"\n *(?:#|//) ?")

Passage = tuple[int, str]  # first line, text


def extract_passages(path: Path) -> Iterator[Passage]:
    """Yield the passages of a file that people read."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        yield 1, MARKDOWN_CODE.sub(_blank, source)
    elif path.suffix == ".html":
        yield 1, HTML_CODE.sub(_blank, source)
    elif path.suffix == ".py" or source.startswith("#!/usr/bin/env python3"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield node.lineno, node.value
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        yield from _join_lines(
            (token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT
        )
    elif path.suffix in (".yaml", ".yml"):
        for token in yaml.scan(source, yaml.CSafeLoader):
            if isinstance(token, yaml.ScalarToken) and " " in token.value:
                yield token.start_mark.line + 1, token.value
        lines = enumerate(source.splitlines(), 1)
        yield from _join_lines(
            (i, found[0]) for i, line in lines if (found := re.search(r"(?<!\S)#.*", line))
        )
    else:
        for match in COMMENT_OR_STRING.finditer(source):
            yield source.count("\n", 0, match.start()) + 1, COMMENT_MARKER.sub("\n", match[0])


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n") or " "


def _join_lines(comments: Iterator[Passage]) -> Iterator[Passage]:
    """Join comments on consecutive lines, so that a phrase may span two of them."""
    start, lines = 0, list[str]()
    for number, text in comments:
        if lines and number != start + len(lines):
            yield start, "\n".join(lines)
            lines = []
        if not lines:
            start = number
        lines.append(text.lstrip("#! "))
    if lines:
        yield start, "\n".join(lines)


def find_folder(name: str) -> str:
    """The folder that a file counts for: a package of attnlab, else the top-level folder."""
    parts = name.split("/")[:-1]
    return "/".join(parts[: 2 if parts[:1] == ["attnlab"] else 1]) or "."


def check_tree(root: Path, rules: dict[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Count each rule's phrases in the files that git tracks or would add.

    Returns:
        A line of figures per folder, and the places in folders above a limit.
    """
    patterns = {
        rule: re.compile(
            rf"(?<![\w'-])({'|'.join(settings['patterns'])})(?![\w'-])".replace(" ", r"\s+"), re.IGNORECASE
        )
        for rule, settings in rules.items()
    }
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    words: Counter[str] = Counter()
    places = defaultdict[tuple[str, str], list[str]](list)
    for name in sorted(name for name in listed if not EXCLUDED.fullmatch(name) and (root / name).is_file()):
        folder = find_folder(name)
        for start, text in extract_passages(root / name):
            words[folder] += len(re.findall(r"[A-Za-z']+", text))
            for rule, pattern in patterns.items():
                for match in pattern.finditer(text):
                    line = start + text.count("\n", 0, match.start())
                    places[folder, rule].append(f"{name}:{line}: {' '.join(match[0].split())}")
    figures, failures = [], list[str]()
    for folder, n in sorted(words.items()):
        rates = {rule: 1000 * len(places[folder, rule]) / max(n, 1) for rule in rules}
        rated = ", ".join(f"{rule} {rate:.2f} (limit {rules[rule]['limit']})" for rule, rate in rates.items())
        figures.append(f"{folder}: {n} words; per 1,000: {rated}")
        for rule, rate in rates.items():
            failures += places[folder, rule] if rate > rules[rule]["limit"] else []
    return figures, failures


if __name__ == "__main__":
    tree = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    folder_figures, found = check_tree(tree, tomllib.loads(RULES_FILE.read_text("utf-8")))
    print("\n".join(folder_figures + sorted(found)))
    sys.exit(1 if found else 0)
