"""Random attempts on verbs and readers: a command line with one mutated file, half past the first check."""

import copy
import gzip
import io
import json
import math
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pyarrow import parquet as pq

from attnlab.cli.commands import VERBS
from attnlab.store.experiment_schema import Experiment

QUESTION = ["--metric", "val_loss", "--lower-is-better", "--margin", "0.01"]
DEEP = 50_000  # levels of nesting beyond any parser's
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 0.5, -0.5, 1e-300, 1e300, -1e300, 10**30, 10**400, 2**63, math.nan,
    math.inf,
    "", " ", "abc", "1", "nan", "../../x", "/proc/self/mem", "/dev/zero", "\0", "\x1b[31m", "é" * 300,
    "x" * 70_000,
    "${oops}", "${model.dim}", "canary.Run", "canary", "os.system", [], {}, [[]], [None], {"": None}, [1,
    "a", None],
    {"_target_": "canary.Run"}, "2025-01-01", "0001-01-01T00:00:00+23:59", "9999-12-31", [0] * 1000,
]  # fmt: skip
CELLS = (
    "", " ", "nan", "inf", "-inf", "1e300", "-1e300", "1e-300", "1e999", "0", "-0.0", "7", "7.0", "1_000",
    "0x10",
    "diverged", "finished", "running", "crashed", "abc", "\u0661", "1,5", '"', "\0", "9" * 5000, "é", "-1",
    "2.5",
    "0001-01-01T00:00:00+23:59", "9" * 400, "True", "[]",
)  # fmt: skip
SPECIAL_PATHS = (
    ".", "..", "/", "/dev/null", "/dev/full", "/dev/zero", "/proc/x", "/proc/self/mem", "/sys/x", "pipe",
    "loop", "dangling",
    "missing/x/y", "", " ", "x" * 300, "a\nb", "\udcff", "~", "-", "s3://", "s3://bucket/x", "file", "file/x",
    "hf://x", "con\0", "folder",
)  # fmt: skip
WORDS = (
    "+=x", "+", "~", "=", "+@=x", "heads@=mha", "a=", "=b", "~=x", "++x", "++x=1", "seed=nan", "seed=-1",
    "seed=range(1,nan)",
    "seed=0,0", "heads=", "heads=null", "heads=[]", "heads={}", "heads=1", "heads=mha,", "heads=../mha",
    "heads=/x",
    "model=null", "trainer=null", "data=null", "ladder=nan", "ladder={}", "ladder=1", "model.dim=0",
    "model.dim=nan", "model={}",
    "hydra=x", "hydra.mode=x", "hydra.mode=RUN", "hydra/launcher=x", "paths=null", "sweep=null",
    "logger=null", "size=x",
    "--", "-", "--x", "--help=x", "--config-dir", "--config-dir=pipe", "-cd=missing", "--cfg", "--cfg=x",
    "--info", "-m",
    "'", '"', "\0", "\udcff", "a b", "${x}", "model.dim=${model.dim}", "model.dim=${oc.env:X}", "x" * 9000,
    "experiment=mine", "+experiment=mine", "+experiment=nope", "+experiment=", "arms=[]", "arms=nan",
    "~heads", "~model",
    "~trainer", "~data", "~optim", "~seed", "~paths", "~measure", "~sweep", "~logger", "~decode", "~size",
    "id=x", "id=../x",
    "parent=x", "parent=../x", "convert={}", "measurement={}", "measurement=x", "trainer.max_steps=0",
    "optim.lr=nan",
    "data.path=pipe", "data.path=/dev/zero", "data.path=.", "paths.runs=pipe", "paths.runs=/proc/x",
    "paths.cache=/proc/x",
    "paths.runs=/dev/null", "paths.reports=/proc/x", "run=x", "run=../x", "run=", "text=", "text=x",
    "prompt=", "to=/proc/x",
    "checkpoint=pipe", "checkpoint=.", "layer=99", "head=-1", "top=0", "days=nan", "threads=0", "rounds=0",
    "minutes=nan",
)  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """A command line, run in a folder of its own that already holds the files.

    Attributes:
        grows: Files that the command may append to.
    """

    kind: str
    words: list[str]
    grows: tuple[str, ...] = ()


def draw_attempt(seed: int, workplace: Path, folder: Path) -> Attempt:
    """Draw the attempt of a seed and write its files into `folder`, which is empty."""
    draw = random.Random(seed)
    kinds: dict[Callable[[random.Random, Path, Path], Attempt], int] = {
        _judge_table: 16, _judge_noise: 5, _judge_log: 10, _judge_declaration: 7, _judge_runs: 8,
        _cost: 18, _checkpoint: 14,
        _run: 14, _report: 3, _experiment: 5, _option: 3, _corpus: 8, _random_words: 8,
    }  # fmt: skip
    return draw.choices([*kinds], [*kinds.values()])[0](draw, workplace, folder)


def _judge_table(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    name = draw.choice(("a.csv", "steps.csv", "wide.csv", "a.jsonl", "a.parquet", "arms.csv"))
    _mutate_table(draw, workplace / name, folder / name)
    flags = [*QUESTION]
    if name == "arms.csv":
        flags += ["--arm-column", draw.choice(("arm", "arm", "val_loss", "seed", "x"))]
    if draw.random() < 0.3:
        flags += draw.choice(
            (["--reduce", "best"], ["--reduce", "mean:2"], ["--looks", "4,6"], ["--looks", "once"])
        )
    if draw.random() < 0.1:
        flags[4] = draw.choice(("1e300", "1e-320", "0", "nan", "-1", "5%", "1e999"))
    other = [] if name == "arms.csv" else [str(workplace / draw.choice(("b.csv", "a.csv", "steps.csv")))]
    words = [name, *other] if draw.random() < 0.8 else [*other, name]
    return Attempt("judge table", ["judge", *words, *flags])


def _judge_noise(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    name = draw.choice(("a.csv", "steps.csv", "a.jsonl", "a.parquet"))
    _mutate_table(draw, workplace / name, folder / name)
    extra = draw.choice(([], ["--margin", "0.01"], ["--margin", "1e-320"], ["--reduce", "mean:3"]))
    return Attempt("judge noise", ["judge", "--noise", name, "--metric", "val_loss", *extra])


def _judge_log(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    name = "log.jsonl"
    if draw.random() < 0.5:
        lines = (workplace / name).read_text().splitlines()
        records = [json.loads(line) for line in lines]
        at = draw.randrange(len(records))
        records[at] = _mutate_tree(draw, records[at])
        (folder / name).write_text("".join(_dump(record) + "\n" for record in records))
        _mutate_bytes_rarely(draw, folder / name)
        table = str(workplace / "b.csv")
    else:
        if draw.random() < 0.7:
            shutil.copy(workplace / name, folder / name)
        else:
            name = _draw_path(draw, folder)
        table = "b.csv"
        _mutate_table(draw, workplace / table, folder / table)
    words = ["judge", "--champion", str(workplace / "a.csv"), "--log", name, table, *QUESTION]
    if draw.random() < 0.2:
        words = [
            "judge",
            "--confirm",
            draw.choice(("b", "a", "x", "1")),
            "--log",
            name,
            str(workplace / "a.csv"),
            table,
        ]
    return Attempt("judge log", words, grows=("log.jsonl",))


def _judge_declaration(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    name = "declared.json"
    _mutate_json_file(draw, workplace / name, folder / name, share=0.8)
    if draw.random() < 0.15:
        name = _draw_path(draw, folder)
    return Attempt(
        "judge declaration", ["judge", str(workplace / "a.csv"), str(workplace / "b.csv"), "--declare", name]
    )


def _judge_runs(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    if draw.random() < 0.3 and any((workplace / "events").iterdir()):  # with TensorBoard
        shutil.copytree(workplace / "events", folder / "events")
        file = draw.choice(sorted(path for path in (folder / "events").rglob("*") if path.is_file()))
        _mutate_bytes(draw, file)
        return Attempt("judge events", ["judge", "events", str(workplace / "b.csv"), *QUESTION])
    runs = _copy_runs(draw, workplace, folder)
    words = ["judge", str(runs), str(workplace / "other" / "runs"), "--metric", "val/loss", *QUESTION[2:]]
    return Attempt("judge runs", words)


def _cost(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    if draw.random() < 0.15:
        runs = _copy_runs(draw, workplace, folder)
        return Attempt(
            "cost", ["cost", str(draw.choice(sorted(path for path in runs.iterdir() if path.is_dir())))]
        )
    source = draw.choice(sorted((workplace / "hub_configs").iterdir()))
    _mutate_json_file(draw, source, folder / "config.json")
    words = ["cost", "config.json"]
    if draw.random() < 0.3:
        key = draw.choice(
            ("num_key_value_heads", "hidden_size", "heads", "heads.n_kv_heads", "rope_scaling.factor", "x")
        )
        words += ["--vs", f"{key}={draw.choice(('1', '0', 'mqa', '[]', 'nan', '1e300', '{', '9' * 5000))}"]
    if draw.random() < 0.3:
        words += draw.choice(
            (["--length", "0"], ["--length", "9" * 30], ["--batch", "-1"], ["--device", "h100"],
            ["--kv-dtype", "int4"],
             ["--json"], ["--page", _draw_path(draw, folder)], ["--device", "x"])
        )  # fmt: skip
    return Attempt("cost", words)


def _checkpoint(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    shutil.copytree(workplace / "checkpoint", folder / "checkpoint")
    name = draw.choice(
        ("config.json",) * 5 + ("tokenizer.json",) * 3 + ("tokenizer_config.json", "model.safetensors")
    )
    file = folder / "checkpoint" / name
    if name == "model.safetensors" and draw.random() < 0.6:
        _mutate_safetensors(draw, file)
    elif name == "model.safetensors":
        _mutate_bytes(draw, file)
    else:
        _mutate_json_file(draw, file, file)
    if draw.random() < 0.5:
        return Attempt(
            "checkpoint",
            ["inspect", "checkpoint=checkpoint", "text=the cat", f"to={_draw_output(draw, folder)}"],
        )
    return Attempt(
        "checkpoint",
        ["generate", "checkpoint=checkpoint", "prompt=the", "new_tokens=2", *_draw_sampling(draw)],
    )


def _run(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    runs = _copy_runs(draw, workplace, folder)
    name = draw.choice(
        sorted(path.name for path in runs.iterdir() if re.fullmatch("[0-9a-f]{16}", path.name))
    )
    words = draw.choice(
        (
            ["inspect", f"run={name}", f"runs={runs}", "text=the fox", f"to={_draw_output(draw, folder)}"],
            ["generate", f"run={name}", f"runs={runs}", "prompt=the ", "new_tokens=2", *_draw_sampling(draw)],
            ["export", f"run={name}", f"runs={runs}", f"to={_draw_output(draw, folder)}"],
            ["clean", f"paths.runs={runs}", f"paths.reports={folder}"],
        )
    )
    return Attempt("run", words)


def _report(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    (folder / "report").mkdir()
    _mutate_json_file(draw, workplace / "report" / "report.json", folder / "report" / "report.json")
    return Attempt(
        "report",
        ["report", "report"]
        if draw.random() < 0.7
        else ["report", "--diff", "report", str(workplace / "report")],
    )


def _experiment(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    source = workplace / "conf" / "experiment" / "mine.yaml"
    target = folder / "conf" / "experiment" / "mine.yaml"
    target.parent.mkdir(parents=True)
    content = yaml.safe_load(source.read_text())
    if draw.random() < 0.5:
        content[draw.choice(sorted(Experiment.list_keys()))] = draw.choice(VALUES)
    else:
        content = _mutate_tree(draw, content)
    _write_yaml(draw, target, content)
    verb = draw.choice(
        (["plan"], ["plan"], ["plan", "--json"], ["status"], ["ladder", "sweep.show=plan"], ["list", "mine"])
    )
    words = [] if verb[0] == "list" else ["+experiment=mine", *_list_paths(workplace, folder)]
    if verb[0] == "ladder":  # it would train
        verb, words = ["plan"], [*words, draw.choice(("ladder=two_cores", "ladder=tokens", "ladder=nan"))]
    return Attempt("experiment", [*verb, *words, "--config-dir", "conf"])


def _option(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    target = folder / "conf" / "heads" / "own.yaml"
    target.parent.mkdir(parents=True)
    content = yaml.safe_load((workplace / "conf" / "heads" / "own.yaml").read_text())
    _write_yaml(draw, target, _mutate_tree(draw, content))
    words = ["heads=own", "size=debug", *_list_paths(workplace, folder), "--config-dir", "conf"]
    return Attempt("option", ["plan", *words])


def _corpus(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    name = draw.choice(("book.txt", "book.jsonl", "book.txt.gz", "book.jsonl.gz"))
    text = (workplace / "book.txt").read_text()
    content = text.encode()
    if "jsonl" in name:
        records: list[Any] = [{"text": line} for line in text.splitlines()]
        at = draw.randrange(len(records))
        records[at] = _mutate_tree(draw, records[at])
        content = "\n".join(map(_dump, records)).encode("utf-8", "surrogatepass")
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    if draw.random() < 0.6:
        _mutate_bytes(draw, folder / name)
    path = name if draw.random() < 0.8 else _draw_path(draw, folder)
    if draw.random() < 0.5:
        words = ["corpus", "show", "data=text", f"data.path={_quote(path)}"]
    else:
        output = _quote(_draw_output(draw, folder))
        words = [
            "corpus",
            "export",
            "data=text",
            "data.allow_overlap=true",
            f"data.path={_quote(path)}",
            f"to={output}",
        ]
    return Attempt("corpus", [*words, f"paths.cache={folder}/cache"])


def _random_words(draw: random.Random, workplace: Path, folder: Path) -> Attempt:
    """Draw a line of any verb that trains nothing."""
    verbs = (
        "plan",
        "cost",
        "judge",
        "inspect",
        "generate",
        "export",
        "report",
        "list",
        "new",
        "schema",
        "corpus",
        "clean",
    )
    verb = draw.choice(verbs)
    flags = re.findall(r"--[a-z-]+", VERBS[verb].usage) or ["--json"]
    words = [
        draw.choice((draw.choice(WORDS), draw.choice(WORDS), draw.choice(flags), _draw_path(draw, folder)))
        for _ in range(draw.randint(1, 3))
    ]
    small = ["size=debug", *_list_paths(workplace, folder)] if verb == "plan" else []
    return Attempt("words", [verb, *words, *small])


def _list_paths(workplace: Path, folder: Path) -> list[str]:
    """List the overrides that keep a plan in the folder of its attempt."""
    return [
        "data=text", "data.allow_overlap=true", f"data.path={workplace}/book.txt",
        f"paths.cache={workplace}/cache", f"paths.runs={folder}/runs", f"paths.reports={folder}/reports",
        "logger=none",
    ]  # fmt: skip


def _copy_runs(draw: random.Random, workplace: Path, folder: Path) -> Path:
    """Copy the run directories and mutate one file."""
    shutil.copytree(workplace / "runs", folder / "runs")
    files = sorted(path for path in (folder / "runs").rglob("*") if path.is_file() and path.stat().st_size)
    preferred = [path for path in files if path.name in ("spec.json", "run.json", "vocabulary.json")]
    file = draw.choice(preferred if draw.random() < 0.7 else files)
    if file.suffix == ".json":
        _mutate_json_file(draw, file, file)
    elif file.suffix == ".safetensors":
        _mutate_safetensors(draw, file)
    else:
        _mutate_bytes(draw, file)
    return folder / "runs"


def _draw_sampling(draw: random.Random) -> list[str]:
    key = draw.choice(("temperature", "top_k", "top_p", "seed", "stop", "decode", "threads", "new_tokens"))
    return (
        [f"{key}={draw.choice(('0', '1', '-1', 'nan', 'inf', '1e300', 'x', '9' * 30, ''))}"]
        if draw.random() < 0.3
        else []
    )


def _draw_output(draw: random.Random, folder: Path) -> str:
    return "out" if draw.random() < 0.7 else _draw_path(draw, folder)


def _draw_path(draw: random.Random, folder: Path) -> str:
    """Draw a path that no command can use, and create it where that is possible."""
    path = draw.choice(SPECIAL_PATHS)
    target = folder / path if path in ("pipe", "loop", "dangling", "file", "file/x", "folder") else None
    if target is None or os.path.lexists(target):
        return path
    if path == "pipe":
        os.mkfifo(target)
    elif path == "loop":
        target.symlink_to("loop")
    elif path == "dangling":
        target.symlink_to("nowhere")
    elif path == "folder":
        target.mkdir()
        (target / "kept").write_text("kept")
    elif not os.path.lexists(folder / "file"):
        (folder / "file").write_text("kept")
    return path


def _quote(text: str) -> str:
    return text if re.fullmatch(r"[\w./~-]*", text) else "'" + text.replace("'", "\\'") + "'"


def _mutate_table(draw: random.Random, source: Path, target: Path) -> None:
    """Write the table with mutated cells, and rarely mutated bytes."""
    if source.suffix == ".jsonl":
        rows = [json.loads(line) for line in source.read_text().splitlines()]
        for _ in range(draw.choice((1, 1, 2, 12))):
            row = draw.choice(rows)
            row[draw.choice((*row, "x"))] = draw.choice((*VALUES, *CELLS))
        target.write_text("".join(_dump(row) + "\n" for row in rows), "utf-8", "surrogatepass")
    elif source.suffix == ".parquet":
        columns = pq.read_table(source).to_pydict()
        name = draw.choice((*columns, "x"))
        value = draw.choice(
            (None, 0, -1, 1e300, math.nan, 2**62, "abc", b"\xff", True, [1], {"a": 1}, 1e-320)
        )
        columns[name] = [value] * len(next(iter(columns.values())))
        pq.write_table(pa.table(columns), target)
    else:
        table = [line.split(",") for line in source.read_text().splitlines()]
        for _ in range(draw.choice((1, 1, 2, 12))):
            row = draw.choice(table)
            row[draw.randrange(len(row))] = draw.choice(CELLS)
        if draw.random() < 0.1:
            column = draw.randrange(len(table[0]))
            cell = draw.choice(CELLS)
            table = [table[0], *([*row[:column], cell, *row[column + 1 :]] for row in table[1:])]
        target.write_text("".join(",".join(row) + "\n" for row in table), "utf-8", "surrogatepass")
    _mutate_bytes_rarely(draw, target)


def _mutate_json_file(draw: random.Random, source: Path, target: Path, share: float = 0.9) -> None:
    """Write the JSON with one mutated value, or with mutated bytes."""
    text = source.read_text()
    if draw.random() < share:
        text = _dump(_mutate_tree(draw, json.loads(text)))
    target.write_text(text, "utf-8", "surrogatepass")
    _mutate_bytes_rarely(draw, target)


def _dump(value: Any) -> str:
    return json.dumps(value).replace('"' + DEEP_MARK + '"', "[" * DEEP + "]" * DEEP)


DEEP_MARK = "nested deeply"


def _mutate_tree(draw: random.Random, root: Any) -> Any:
    """Replace, remove or add a value of plain JSON."""
    root = copy.deepcopy(root)
    nodes = list(_iterate_nodes(root))
    if not nodes:
        return draw.choice(VALUES)
    for _ in range(draw.choice((1, 1, 1, 2))):
        node, key = draw.choice(nodes)
        change = draw.random()
        if change < 0.15:
            if isinstance(node, dict):
                node.pop(key, None)
            elif len(node) > 1:
                node.pop()
        elif change < 0.25:
            if isinstance(node, dict):
                node[draw.choice(("x", "", "_target_", "a.b", "\0"))] = draw.choice(VALUES)
            else:
                node.append(draw.choice(VALUES))
        elif change < 0.28:
            _set(node, key, DEEP_MARK)
        else:
            old = node.get(key) if isinstance(node, dict) else node[key] if key < len(node) else None
            similar = [-old, old * 2, old + 1, 0 * old, str(old)] if type(old) in (int, float) else []
            _set(node, key, draw.choice(similar if similar and draw.random() < 0.4 else VALUES))
    return root


def _set(node: Any, key: Any, value: Any) -> None:
    if isinstance(node, dict) or key < len(node):
        node[key] = copy.deepcopy(value)


def _iterate_nodes(root: Any) -> Iterator[tuple[Any, Any]]:
    for key in root if isinstance(root, dict) else range(len(root)) if isinstance(root, list) else ():
        yield root, key
        yield from _iterate_nodes(root[key])


def _write_yaml(draw: random.Random, target: Path, content: Any) -> None:
    stream = io.StringIO()
    yaml.safe_dump(content, stream, allow_unicode=True)
    text = f"# @package _global_\n{stream.getvalue()}"
    extra = draw.random()
    if extra < 0.04:
        text += "x: &a [*a]\n"
    elif extra < 0.08:
        text += "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
            f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        )
    elif extra < 0.1:
        text += "x: " + "[" * DEEP + "]" * DEEP + "\n"
    elif extra < 0.13:
        text += draw.choice(
            (
                "x: {{\n",
                "\t",
                "x: !!python/object/apply:os.system ['touch canary']\n",
                "---\n",
                "x: *y\n",
                "name: b\n",
            )
        )
    target.write_text(text, "utf-8", "surrogatepass")
    _mutate_bytes_rarely(draw, target)


def _mutate_safetensors(draw: random.Random, file: Path) -> None:
    """Mutate the header, which is JSON after its length in 8 bytes."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = _dump(_mutate_tree(draw, json.loads(content[8 : 8 + length]))).encode("utf-8", "surrogatepass")
    new_length = len(header) if draw.random() < 0.9 else draw.choice((0, 2**63, 2**40, length - 1))
    _replace(file, new_length.to_bytes(8, "little") + header + content[8 + length :])


def _mutate_bytes_rarely(draw: random.Random, file: Path) -> None:
    if draw.random() < 0.08:
        _mutate_bytes(draw, file)


def _mutate_bytes(draw: random.Random, file: Path) -> None:
    """Damage a file, or put something else in its place."""
    content = file.read_bytes()
    at = draw.randrange(len(content) + 1)
    match draw.randrange(13):
        case 0:
            _replace(file, content[:at])
        case 1:
            _replace(file, b"")
        case 2 | 3 | 4:
            damaged = bytearray(content)
            for _ in range(draw.choice((1, 3, 20))):
                if damaged:
                    damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            _replace(file, bytes(damaged))
        case 5:
            _replace(file, b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
        case 6:
            _replace(
                file,
                content[:at]
                + draw.choice((b"\0", b"\xff\xfe", b"[" * DEEP, b"{", b"\x1b[2J"))
                + content[at:],
            )
        case 7:
            _replace(file, content + content)
        case 8:
            file.unlink()
            os.mkfifo(file)
        case 9:
            file.unlink()
            file.mkdir()
        case 10:
            file.unlink()
            file.symlink_to(
                draw.choice(("/dev/zero", "/dev/null", "/proc/self/mem", file.name, "nowhere", "/"))
            )
        case 11:
            with file.open("r+b") as stream:
                stream.truncate(2**40)  # a sparse file
        case 12:
            _replace(file, content.decode("utf-8", "replace").encode("utf-16"))


def _replace(file: Path, content: bytes) -> None:
    file.write_bytes(content)
