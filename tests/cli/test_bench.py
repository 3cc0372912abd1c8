"""What the benches say besides times: rows, refusals, exact bytes, and that both sides are the same size."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import alive, children, wait_until

from attnlab.attention.contracts import Unsupported
from attnlab.cli import main as entry
from attnlab.cli.bench import Bench
from attnlab.cli.bench.nanogpt import NanoGpt
from attnlab.cli.bench.rows import rows
from attnlab.cli.bench.setup import composed
from attnlab.cli.bench.subjects import contexts, data, decode, memory, sharing, start, train
from attnlab.cli.bench.table import table
from attnlab.cli.bench.trials import attempt, survey
from attnlab.cli.commands import SUBJECTS, VERBS
from attnlab.measure.roofline import Roofline
from attnlab.model.build import build_model


def silent(line):
    pass


def measure_bench(subject, prepared, rounds):
    """The Bench of a subject, measured in this process."""
    bench = Bench(subject.__name__.rpartition(".")[2])
    subject.measure(prepared, bench, silent, rounds)
    return bench


def test_the_first_row_of_a_group_is_what_the_others_are_compared_with():
    first, second = rows("g", {"a": [2.0] * 6, "b": [4.0] * 6}, "ms", {"a": 1.0}, {"b": {"bytes": 7}})
    assert (first.ratio, second.ratio) == (1.0, 2.0)
    assert (second.ratio_low, second.ratio_high) == (2.0, 2.0)
    assert (first.roofline, second.roofline) == (1.0, None)
    assert second.facts == {"bytes": 7}
    assert second.samples == [4.0] * 6


def raises(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize("count", [1, 3, 4])
def test_any_number_of_samples_has_a_median_and_a_ratio(count):
    _first, second = rows("g", {"a": [2.0] * count, "b": [4.0] * count}, "s")
    assert (second.median, second.ratio) == (4.0, 2.0)


def test_what_cannot_be_done_is_a_row_and_what_is_broken_is_an_error():
    works = {
        "fine": lambda: 1.0,
        "large": raises(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")),
        "larger": raises(torch.OutOfMemoryError("CUDA out of memory")),
        "strange": raises(Unsupported("no backward here")),
    }
    samples, notes = survey(works, 3, silent)
    assert samples == {"fine": [1.0] * 6}
    made = rows("g", samples, "ms", notes=notes)
    assert [(row.name, row.note) for row in made] == [
        ("fine", None),
        ("large", "out of memory"),
        ("larger", "out of memory"),
        ("strange", "no backward here"),
    ]
    assert "out of memory" in table(Bench("x", rows=made))
    assert rows("g", *survey({"large": works["large"]}, 3, silent)[:1], "ms", notes=notes)[0].median is None
    with pytest.raises(RuntimeError, match="broken"):
        attempt(raises(RuntimeError("broken")))


def test_a_roofline_is_the_slower_of_its_two_limits():
    limits = Roofline(bytes_per_s=1e9, flops_per_s=1e12)
    assert limits.milliseconds(2e6, 1e6) == 2.0
    assert limits.milliseconds(1, 5e9) == 5.0


def test_nanogpt_and_ours_have_equally_many_parameters_and_the_same_loss_of_the_same_weights():
    config = composed([*train.OVERRIDES, "model.dim=32", "data.length=16"])
    ours = build_model(config, 50).double()
    plain = NanoGpt(50, 16, 32, 4, 4).double()
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters())
    with torch.no_grad():
        plain.tokens.weight.copy_(ours.embedding.weight)
        plain.places.weight.copy_(ours.positions.table.weight)
        for theirs, block in zip(plain.layers, ours.blocks, strict=True):
            theirs.qkv.weight.copy_(block.mixer.heads.qkv.weight)
            theirs.out.weight.copy_(block.mixer.heads.out.weight)
            theirs.up.weight.copy_(block.ffn.up.weight)
            theirs.down.weight.copy_(block.ffn.down.weight)
    tokens = torch.arange(34).view(2, 17)
    loss = torch.nn.functional.cross_entropy(ours(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert plain(tokens[:, :-1], tokens[:, 1:]).item() == pytest.approx(loss.item(), abs=1e-6)


@pytest.mark.parametrize("n_kv_heads", [4, 1])
def test_transformers_model_has_as_many_parameters_as_ours(n_kv_heads):
    pytest.importorskip("transformers")
    config = composed([*decode.OVERRIDES, "model.dim=32", "model.n_heads=4", "model.ffn_width=40"])
    networks = decode._ours(config, n_kv_heads), decode.theirs(config, n_kv_heads, 16)
    assert len({sum(p.numel() for p in network.parameters()) for network in networks}) == 1


@pytest.mark.rare
def test_bytes_grow_with_the_square_in_eager_and_linearly_in_sdpa(monkeypatch):
    monkeypatch.setattr(memory, "LENGTHS", (256, 512))
    shape = ["model.dim=16", "model.n_heads=4", "model.n_layers=1"]
    bench = measure_bench(memory, composed([*memory.OVERRIDES, *shape]), 1)
    exponents = [row.facts["exponent"] for row in bench.rows if "exponent" in row.facts]
    assert exponents[0] > 1.9
    assert exponents[1] == 1.0
    held = {row.name: row.median for row in bench.rows if row.group.startswith("bytes cached")}
    assert held["heads=mha"] == 2 * 16 * 4
    assert held["heads=mqa"] * 4 == held["heads=mha"]
    json.dumps(dataclasses.asdict(bench), allow_nan=False)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["bench"], "name one of decode, contexts, train, attention, memory, start, data, sharing"),
        (["bench", "decod"], "(nearest: decode)"),
        (["bench", "memory", "--jsn"], "bench does not know --jsn (nearest: --json"),
        (["bench", "memory", "threads=0"], "threads=0"),
        (["bench", "memory", "rounds=x"], "rounds=x"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_2(capfd, line, told):
    assert entry.main(line) == 2
    errors = capfd.readouterr().err
    assert told in errors
    assert errors.count("\n") == 1


def test_a_training_step_is_measured_in_turn_with_nanogpts(monkeypatch):
    monkeypatch.setattr(train, "STEPS", 2)
    config = composed([*train.OVERRIDES, "model.dim=16", "model.n_layers=1", "data.length=8"])
    found = train._steps("a step", config, Roofline(1e9, 1e9), lambda line: None, rounds=1)
    assert [(row.name, len(row.samples)) for row in found] == [
        ("nanoGPT's", 2),
        ("ours", 2),
        ("nanoGPT's, with a fused AdamW", 2),
        ("our bare loop", 2),
        ("through Lightning", 2),
        ("of which: waiting for a batch", 2),
    ]
    assert all(sample > 0 for row in found for sample in row.samples)


def test_a_step_at_a_context_reads_what_its_kv_heads_hold(monkeypatch):
    monkeypatch.setattr(contexts, "CONTEXTS", {"cpu": (32,)})
    monkeypatch.setattr(contexts, "PIECE", 16)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # a minute for what is read
    shape = ["model.dim=32", "model.n_layers=1", "model.n_heads=8", "model.ffn_width=40"]
    bench = measure_bench(contexts, contexts.prepare(shape, None), 1)
    ours = {row.group.rpartition(", ")[2]: row.facts for row in bench.rows if row.name == "compiled"}
    read = {name: facts["bytes"] for name, facts in ours.items()}
    assert list(read) == ["8 KV heads", "2 KV heads", "1 KV heads", "a latent"]
    per_head = 2 * 4 * 32 * 4  # keys and values of 4 features, 32 tokens, 4 bytes a number
    weights = 2 * 32 * 4 * 4  # and what projects to them
    assert read["8 KV heads"] - read["2 KV heads"] == 6 * (per_head + weights)
    assert read["2 KV heads"] - read["1 KV heads"] == per_head + weights
    assert all(facts["of_copy_bandwidth"] > 0 for facts in ours.values())


def test_runs_an_hour_are_counted_from_the_first_start_to_the_last_end(monkeypatch):
    monkeypatch.setattr(sharing, "run_command", lambda command: trained(command))

    def trained(command):
        runs = Path(next(word for word in command if word.startswith("paths.runs=")).partition("=")[2])
        number = int(re.search(r"seed=range\((\d+)\)", " ".join(command))[1])
        slots = int(re.search(r"sweep.slots=(\d+)", " ".join(command))[1])
        for n in range(number):  # of ten seconds each
            path = runs / str(n) / "run.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"seconds": 10.0}))
            os.utime(path, (0, 1000 + 10 * (n // slots + 1)))
        return subprocess.CompletedProcess(command, 0, "", "")

    bench = measure_bench(sharing, sharing.prepare(["size=debug"], None), 3)
    assert [(row.name, row.median, row.ratio) for row in bench.rows] == [
        ("1 at a time", pytest.approx(360), 1.0),
        ("2 at a time", pytest.approx(720), pytest.approx(2.0)),
    ]
    assert {row.facts["seconds_a_run"] for row in bench.rows} == {10.0}


class Processes:
    """Starts none: remembers every line, and answers as the plan of an experiment would."""

    def __init__(self, plan):
        self.plan, self.lines = plan, []

    def __call__(self, line, environment):
        self.lines.append([word for word in line if not word.startswith("paths.reports=")])
        return subprocess.CompletedProcess(line, 0, self.plan if line[0] == "plan" else "", "")


@pytest.mark.parametrize("left", ["0 to train, 24 done", "0 to train by now, 24 done"])
def test_starts_are_taken_in_turn_and_a_finished_experiment_is_among_them(monkeypatch, left):
    processes = Processes(f"24 done\n{left}\n")
    monkeypatch.setattr(start, "run_command", processes)
    prepared = start.prepare(["logger=none", "experiment=smoke"], None)
    bench = measure_bench(start, prepared, 2)
    works = len(VERBS) + 5  # --help, list; plan, status and the whole command
    asked, first, second = processes.lines[0], processes.lines[1 : works + 1], processes.lines[works + 1 :]
    assert asked == ["plan", "+experiment=smoke", "logger=none"]
    assert first == second[::-1]
    assert len(bench.rows) == len(first) == works
    assert {len(row.samples) for row in bench.rows} == {2}
    assert ["+experiment=smoke", "logger=none"] in first
    json.dumps(dataclasses.asdict(bench), allow_nan=False)


@pytest.mark.parametrize(
    "plan", ["3 to train, 21 done", "3 to train by now, 21 done", "0 to train, 23 done, 1 failed", ""]
)
def test_an_experiment_that_is_not_finished_is_never_started(monkeypatch, plan):
    processes = Processes(plan)
    monkeypatch.setattr(start, "run_command", processes)
    bench = measure_bench(start, start.prepare([], None), 1)
    notes = {row.name: row.note for row in bench.rows if row.note}
    assert set(notes) == {"plan", "status", "again"}
    assert plan in notes["again"]
    assert not any(line[0].startswith("+experiment") for line in processes.lines)
    assert "not finished" in table(bench)


def test_an_experiment_that_is_not_there_is_one_line_and_starts_are_taken_without_torch(tmp_path):
    line = ["bench", "start", "experiment=gqa_vs_mah"]
    script = f"import sys; from attnlab.cli.main import main; print(main({line}), 'torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert ended.stdout == "2 False\n"
    assert "(nearest: gqa_vs_mha" in ended.stderr.splitlines()[-1]


def test_batches_of_a_text_are_compared_with_a_loop_over_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "BATCHES", 2)
    monkeypatch.setattr(data, "SHAPES", {"M": (3, 5)})
    config = composed(["data=pydocs", "data/tokenizer=byte", "logger=none", f"paths.cache={tmp_path}"])
    start, *batches = measure_bench(data, config, 1).rows
    assert start.facts["tokens"] > 10**5
    assert [row.name for row in batches] == [
        "a loop over a tensor in memory", "the same as below, in memory", "mapped tokens",
        "mapped tokens, the loader",
    ]  # fmt: skip
    assert {len(row.samples) for row in (start, *batches)} == {2}


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.rare(sample=1)
@pytest.mark.timeout(900)
def test_every_subject_is_measured_at_its_smallest_setting(subject, tmp_path):
    about = ["experiment=kv_cache_bytes"] if subject == "start" else []  # whose plan reads no text
    line = [sys.executable, "-m", "attnlab", "bench", subject, *about, "size=debug", "rounds=1", "--json"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bench = json.loads(done.stdout)
    assert (bench["subject"], bench["failure"]) == (subject, None)
    assert bench["conditions"]
    assert any(row["samples"] for row in bench["rows"])
    assert all(row["samples"] or row["note"] for row in bench["rows"])


def test_every_function_whose_time_is_taken_is_there():
    missing = [
        (owner.__name__, function)
        for functions in train.WATCHED.values()
        for owner, function in functions
        if not hasattr(owner, function)
    ]
    assert missing == []


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_part_that_fails_leaves_the_rows_before_it_and_one_line(monkeypatch, capfd, arguments):
    monkeypatch.setattr(memory, "_cached", lambda config: raises(AttributeError("no such\npart"))())
    assert entry.main(["bench", "memory", "size=debug", *arguments]) == 1
    out, errors = capfd.readouterr()
    *_, last = errors.splitlines()
    assert re.fullmatch(
        r"attnlab: bench memory: AttributeError: no such part \(test_bench.py:\d+\); "
        r"4 rows were measured before",
        last,
    )
    assert "Traceback" not in errors
    if arguments:
        bench = json.loads(out)
        assert len(bench["rows"]) == 4
        assert bench["failure"].startswith("AttributeError: no such part")
    else:
        assert out.count("T = 16") == out.count("T = 32") == 2


HANDLERS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}  # of a plain process


def list_descendants(pid):
    """The processes below one, at any depth."""
    below = children(pid)
    return [*below, *(one for child in below for one in list_descendants(child))]


def end_by_signal(number, folder, words, due, begins):
    """Exit status, rows and errors of a bench that gets a signal once it has said `begins` and has started
    `due` commands; all processes below it are gone.
    """
    errors = folder / "errors"
    with errors.open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "attnlab", "bench", *words, "--json"],
            cwd=folder, stdout=subprocess.PIPE, stderr=told, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    seen, commands = set(), set()

    def is_due():
        commands.update(children(process.pid))
        seen.update(list_descendants(process.pid))
        assert process.poll() is None, errors.read_text()
        return begins in errors.read_text() and len(commands) >= due

    wait_until(is_due, 250)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    wait_until(lambda: not any(map(alive, seen)))
    return process.returncode, json.loads(out)["rows"], errors.read_text()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_meanwhile_prints_the_rows_before_it(monkeypatch, capfd, number, status):
    before = [signal.signal(each, handler) for each, handler in HANDLERS.items()]
    monkeypatch.setattr(memory, "_cached", lambda config: signal.raise_signal(number))
    try:
        assert entry.main(["bench", "memory", "size=debug"]) == status
        assert {each: signal.getsignal(each) for each in HANDLERS} == HANDLERS
    finally:
        for each, handler in zip(HANDLERS, before, strict=True):
            signal.signal(each, handler)
    out, errors = capfd.readouterr()
    assert out.count("T = 16") == out.count("T = 32") == 2
    said = f"attnlab: bench memory: ended by {number.name}; 4 rows were measured before"
    assert errors.splitlines()[-1] == said


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.rare(sample=1)
def test_a_signal_ends_a_bench_with_its_rows_and_its_children(tmp_path, number, status):
    words = ["start", "experiment=kv_cache_bytes", "rounds=50"]  # its plan, --help, and one more
    found, rows, errors = end_by_signal(number, tmp_path, words, 3, "round 1 of 50")
    assert found == status
    assert rows[0]["name"] == "--help"
    assert errors.splitlines()[-1].startswith(f"attnlab: bench start: ended by {number.name}; ")


@pytest.mark.parametrize(
    ("words", "begins", "due"),
    [
        (["train", "size=debug", "rounds=1000"], "round 2 of 1000", 0),  # while Lightning trains
        (["sharing", "size=debug", "trainer.max_steps=50"], "8 runs, 2 at a time", 2),  # the second sweep
    ],
)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.rare(sample=1)
def test_a_signal_ends_what_trains(tmp_path, words, begins, due, number, status):
    found, _, errors = end_by_signal(number, tmp_path, words, due, begins)
    assert found == status, errors
    assert "Traceback" not in errors
