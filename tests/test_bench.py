"""`bench`: rows, errors, exact bytes, equal model sizes, and signals."""

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
from processes import is_alive, list_children, wait_until

import attnlab
from attnlab.attention.contracts import Unsupported
from attnlab.cli import main as entry
from attnlab.cli.commands import BENCH_SUBJECTS, VERBS
from attnlab.cli.run_config import compose_run_config
from attnlab.measure.roofline import Roofline
from attnlab.model.build import build_model
from benchmarks import BenchResult
from benchmarks.bench_rows import build_rows
from benchmarks.bench_table import format_bench
from benchmarks.nanogpt import NanoGpt
from benchmarks.subjects import contexts, data, decode, memory, sharing, start, train
from benchmarks.workloads import sample_supported, try_workload


def ignore_log(line):
    pass


def measure_bench(subject, setup, rounds):
    """Measure a subject in this process."""
    bench = BenchResult(subject.__name__.rpartition(".")[2])
    subject.measure(setup, bench, ignore_log, rounds)
    return bench


def test_ratios_refer_to_the_first_row_of_a_group():
    first, second = build_rows("g", {"a": [2.0] * 6, "b": [4.0] * 6}, "ms", {"a": 1.0}, {"b": {"bytes": 7}})
    assert (first.ratio, second.ratio) == (1.0, 2.0)
    assert (second.ratio_low, second.ratio_high) == (2.0, 2.0)
    assert (first.roofline, second.roofline) == (1.0, None)
    assert second.facts == {"bytes": 7}
    assert second.samples == [4.0] * 6


def make_raiser(error):
    def raise_error():
        raise error

    return raise_error


@pytest.mark.parametrize("count", [1, 3, 4])
def test_any_number_of_samples_has_a_median_and_a_ratio(count):
    _first, second = build_rows("g", {"a": [2.0] * count, "b": [4.0] * count}, "s")
    assert (second.median, second.ratio) == (4.0, 2.0)


def test_unsupported_workload_is_a_row_and_a_broken_one_an_error():
    workloads = {
        "fine": lambda: 1.0,
        "large": make_raiser(
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        ),
        "larger": make_raiser(torch.OutOfMemoryError("CUDA out of memory")),
        "strange": make_raiser(Unsupported("no backward here")),
    }
    samples, notes = sample_supported(workloads, 3, ignore_log)
    assert samples == {"fine": [1.0] * 6}
    rows = build_rows("g", samples, "ms", notes=notes)
    assert [(row.name, row.note) for row in rows] == [
        ("fine", None),
        ("large", "out of memory"),
        ("larger", "out of memory"),
        ("strange", "no backward here"),
    ]
    assert "out of memory" in format_bench(BenchResult("x", rows=rows))
    assert (
        build_rows(
            "g", *sample_supported({"large": workloads["large"]}, 3, ignore_log)[:1], "ms", notes=notes
        )[0].median
        is None
    )
    with pytest.raises(RuntimeError, match="broken"):
        try_workload(make_raiser(RuntimeError("broken")))


def test_roofline_is_the_slower_of_its_two_limits():
    limits = Roofline(bytes_per_s=1e9, flops_per_s=1e12)
    assert limits.minimum_ms(2e6, 1e6) == 2.0
    assert limits.minimum_ms(1, 5e9) == 5.0


def test_nanogpt_has_our_parameter_count_and_loss_for_equal_weights():
    config = compose_run_config([*train.OVERRIDES, "model.dim=32", "data.length=16"])
    attnlab_model = build_model(config, 50).double()
    nanogpt = NanoGpt(50, 16, 32, 4, 4).double()
    assert sum(p.numel() for p in nanogpt.parameters()) == sum(p.numel() for p in attnlab_model.parameters())
    with torch.no_grad():
        nanogpt.token_embedding.weight.copy_(attnlab_model.embedding.weight)
        nanogpt.position_embedding.weight.copy_(attnlab_model.positions.table.weight)
        for nanogpt_block, block in zip(nanogpt.layers, attnlab_model.blocks, strict=True):
            nanogpt_block.qkv.weight.copy_(block.mixer.heads.qkv.weight)
            nanogpt_block.out.weight.copy_(block.mixer.heads.out.weight)
            nanogpt_block.up.weight.copy_(block.ffn.up.weight)
            nanogpt_block.down.weight.copy_(block.ffn.down.weight)
    tokens = torch.arange(34).view(2, 17)
    loss = torch.nn.functional.cross_entropy(
        attnlab_model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
    )
    assert nanogpt(tokens[:, :-1], tokens[:, 1:]).item() == pytest.approx(loss.item(), abs=1e-6)


@pytest.mark.parametrize("n_kv_heads", [4, 1])
def test_transformers_llama_has_our_parameter_count(n_kv_heads):
    pytest.importorskip("transformers")
    config = compose_run_config([*decode.OVERRIDES, "model.dim=32", "model.n_heads=4", "model.ffn_width=40"])
    networks = (
        decode._build_gqa_model(config, n_kv_heads),
        decode.build_transformers_llama(config, n_kv_heads, 16),
    )
    assert len({sum(p.numel() for p in network.parameters()) for network in networks}) == 1


@pytest.mark.rare
def test_saved_bytes_grow_quadratically_in_eager_and_linearly_in_sdpa(monkeypatch):
    monkeypatch.setattr(memory, "LENGTHS", (256, 512))
    shape = ["model.dim=16", "model.n_heads=4", "model.n_layers=1"]
    bench = measure_bench(memory, compose_run_config([*memory.OVERRIDES, *shape]), 1)
    exponents = [row.facts["exponent"] for row in bench.rows if "exponent" in row.facts]
    assert exponents[0] > 1.9
    assert exponents[1] == 1.0
    cache_bytes = {row.name: row.median for row in bench.rows if row.group.startswith("bytes cached")}
    assert cache_bytes["heads=mha"] == 2 * 16 * 4
    assert cache_bytes["heads=mqa"] * 4 == cache_bytes["heads=mha"]
    json.dumps(dataclasses.asdict(bench), allow_nan=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ["bench"],
            "unknown subject; use one of decode, contexts, train, attention, memory, start, data, sharing",
        ),
        (["bench", "decod"], "(nearest: decode)"),
        (["bench", "memory", "--jsn"], "bench: unknown flag --jsn (nearest: --json"),
        (["bench", "memory", "threads=0"], "threads=0"),
        (["bench", "memory", "rounds=x"], "rounds=x"),
        (
            ["bench", "memory", "size=S", "size=debug"],
            "size is set twice, size=S and size=debug: remove one\n",
        ),
        (["bench", "start", "experiment=smoke", "+experiment=optim"], "experiment is set twice"),
        (["bench", "memory", "+experiment=smoke"], "+experiment=smoke: experiment= is only for sweeps"),
    ],
)
def test_invalid_arguments_are_one_line_with_exit_2(capfd, line, message):
    assert entry.main(line) == 2
    errors = capfd.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_package_without_the_clone_names_the_clone(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(attnlab, "__file__", str(tmp_path / "attnlab" / "__init__.py"))
    (tmp_path / "benchmarks").mkdir()  # of another project
    assert entry.main(["bench", "memory"]) == 2
    message = "bench: the installed package has no benchmarks: run the command in a clone of attnlab"
    assert capfd.readouterr().err == f"attnlab: {message}\n"


def test_training_steps_alternate_with_nanogpts(monkeypatch):
    monkeypatch.setattr(train, "TIMED_STEPS", 2)
    config = compose_run_config([*train.OVERRIDES, "model.dim=16", "model.n_layers=1", "data.length=8"])
    result = train._measure_steps("a step", config, Roofline(1e9, 1e9), lambda line: None, rounds=1)
    assert [(row.name, len(row.samples)) for row in result] == [
        ("nanoGPT's", 2),
        ("ours", 2),
        ("nanoGPT's, with a fused AdamW", 2),
        ("our bare loop", 2),
        ("through Lightning", 2),
        ("of which: waiting for a batch", 2),
    ]
    assert all(sample > 0 for row in result for sample in row.samples)


def test_step_at_a_context_reads_the_bytes_of_its_kv_heads(monkeypatch):
    monkeypatch.setattr(contexts, "CONTEXTS", {"cpu": (32,)})
    monkeypatch.setattr(contexts, "PREFILL_CHUNK", 16)
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: function
    )  # compiling takes a minute and changes no byte count
    shape = ["model.dim=32", "model.n_layers=1", "model.n_heads=8", "model.ffn_width=40"]
    bench = measure_bench(contexts, contexts.prepare(shape, None), 1)
    attnlab_model = {row.group.rpartition(", ")[2]: row.facts for row in bench.rows if row.name == "compiled"}
    bytes_read = {name: facts["bytes"] for name, facts in attnlab_model.items()}
    assert list(bytes_read) == ["8 KV heads", "2 KV heads", "1 KV heads", "a latent"]
    per_head = 2 * 4 * 32 * 4  # keys and values of 4 features, 32 tokens, 4 bytes per number
    weights = 2 * 32 * 4 * 4  # their projections
    assert bytes_read["8 KV heads"] - bytes_read["2 KV heads"] == 6 * (per_head + weights)
    assert bytes_read["2 KV heads"] - bytes_read["1 KV heads"] == per_head + weights
    assert all(facts["of_copy_bandwidth"] > 0 for facts in attnlab_model.values())


def test_runs_per_hour_count_from_first_start_to_last_end(monkeypatch):
    monkeypatch.setattr(sharing, "run_command", lambda command: fake_sweep(command))

    def fake_sweep(command):
        runs = Path(next(word for word in command if word.startswith("paths.runs=")).partition("=")[2])
        number = int(re.search(r"seed=range\((\d+)\)", " ".join(command))[1])
        slots = int(re.search(r"sweep.slots=(\d+)", " ".join(command))[1])
        for n in range(number):  # ten seconds each
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
    """A command runner that starts nothing: it records lines, and returns a plan."""

    def __init__(self, plan):
        self.plan, self.lines = plan, []

    def __call__(self, line, environment):
        self.lines.append([word for word in line if not word.startswith("paths.reports=")])
        return subprocess.CompletedProcess(line, 0, self.plan if line[0] == "plan" else "", "")


@pytest.mark.parametrize("plan_line", ["0 to train, 24 done", "0 to train now, 24 done"])
def test_starts_alternate_and_include_a_finished_experiment(monkeypatch, plan_line):
    processes = Processes(f"24 done\n{plan_line}\n")
    monkeypatch.setattr(start, "run_command", processes)
    setup = start.prepare(["logger=none", "experiment=smoke"], None)
    bench = measure_bench(start, setup, 2)
    workloads = len(VERBS) + 5  # --help, list, plan, status and the full command
    plan_call, first, second = (
        processes.lines[0],
        processes.lines[1 : workloads + 1],
        processes.lines[workloads + 1 :],
    )
    assert plan_call == ["plan", "+experiment=smoke", "logger=none"]
    assert first == second[::-1]
    assert len(bench.rows) == len(first) == workloads
    assert {len(row.samples) for row in bench.rows} == {2}
    assert ["+experiment=smoke", "logger=none"] in first
    json.dumps(dataclasses.asdict(bench), allow_nan=False)


@pytest.mark.parametrize(
    "plan", ["3 to train, 21 done", "3 to train now, 21 done", "0 to train, 23 done, 1 failed", ""]
)
def test_unfinished_experiment_is_never_started(monkeypatch, plan):
    processes = Processes(plan)
    monkeypatch.setattr(start, "run_command", processes)
    bench = measure_bench(start, start.prepare([], None), 1)
    notes = {row.name: row.note for row in bench.rows if row.note}
    assert set(notes) == {"plan", "status", "again"}
    assert plan in notes["again"]
    assert not any(line[0].startswith("+experiment") for line in processes.lines)
    assert "not finished" in format_bench(bench)


def test_missing_experiment_is_one_line_and_bench_start_does_not_import_torch(tmp_path):
    line = ["bench", "start", "experiment=gqa_vs_mah"]
    script = f"import sys; from attnlab.cli.main import main; print(main({line}), 'torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert result.stdout == "2 False\n"
    assert "(nearest: gqa_vs_mha" in result.stderr.splitlines()[-1]


def test_text_batches_are_compared_with_a_hand_written_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "BATCHES_PER_SAMPLE", 2)
    monkeypatch.setattr(data, "BATCH_SHAPES", {"M": (3, 5)})
    config = compose_run_config(
        ["data=pydocs", "data/tokenizer=byte", "logger=none", f"paths.cache={tmp_path}"]
    )
    start, *batches = measure_bench(data, config, 1).rows
    assert start.facts["tokens"] > 10**5
    assert [row.name for row in batches] == [
        "a loop over a tensor in memory", "the same as below, in memory", "mapped tokens",
        "mapped tokens, the loader",
    ]  # fmt: skip
    assert {len(row.samples) for row in (start, *batches)} == {2}


@pytest.mark.parametrize("subject", BENCH_SUBJECTS)
@pytest.mark.rare(sample=1)
@pytest.mark.timeout(900)
def test_every_subject_is_measured_at_size_debug(subject, tmp_path):
    arguments = ["experiment=kv_cache_bytes"] if subject == "start" else []  # its plan reads no text
    line = [sys.executable, "-m", "attnlab", "bench", subject, *arguments, "size=debug", "rounds=1", "--json"]
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    bench = json.loads(result.stdout)
    assert (bench["subject"], bench["failure"]) == (subject, None)
    assert bench["conditions"]
    assert any(row["samples"] for row in bench["rows"])
    assert all(row["samples"] or row["note"] for row in bench["rows"])


def test_every_profiled_function_exists():
    missing = [
        (owner.__name__, function)
        for functions in train.PROFILED_FUNCTIONS.values()
        for owner, function in functions
        if not hasattr(owner, function)
    ]
    assert missing == []


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_failing_part_keeps_the_previous_rows_and_prints_one_line(monkeypatch, capfd, arguments):
    monkeypatch.setattr(
        memory, "_build_cache_rows", lambda config: make_raiser(AttributeError("no such\npart"))()
    )
    assert entry.main(["bench", "memory", "size=debug", *arguments]) == 1
    out, errors = capfd.readouterr()
    *_, last_line = errors.splitlines()
    assert re.fullmatch(
        r"attnlab: bench memory: AttributeError: no such part \(test_bench.py:\d+\); "
        r"4 rows measured before it",
        last_line,
    )
    assert "Traceback" not in errors
    if arguments:
        bench = json.loads(out)
        assert len(bench["rows"]) == 4
        assert bench["failure"].startswith("AttributeError: no such part")
    else:
        assert out.count("T = 16") == out.count("T = 32") == 2


HANDLERS = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}  # defaults of a process


def list_descendants(pid):
    """List the descendants of a process."""
    children = list_children(pid)
    return [*children, *(descendant for child in children for descendant in list_descendants(child))]


def prepare_child():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(os, "sched_setaffinity"):  # two threads of a run would wait for each other beside other tests
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


def signal_bench(number, folder, words, min_commands, progress):
    """Signal a bench once it has printed `progress` and started `min_commands` commands.

    Returns exit status, rows and stderr, after all descendants have exited.
    """
    errors = folder / "errors"
    with errors.open("w") as message:
        process = subprocess.Popen(
            [sys.executable, "-m", "attnlab", "bench", *words, "--json"],
            cwd=folder, stdout=subprocess.PIPE, stderr=message, text=True, start_new_session=True,
            preexec_fn=prepare_child,
        )  # fmt: skip
    descendants, commands = set(), set()

    def is_ready():
        commands.update(list_children(process.pid))
        descendants.update(list_descendants(process.pid))
        assert process.poll() is None, errors.read_text()
        return progress in errors.read_text() and len(commands) >= min_commands

    try:
        wait_until(is_ready, 250)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
        wait_until(lambda: not any(map(is_alive, descendants)))
    finally:
        print(errors.read_text())
        if process.poll() is None:  # a failed wait shall not disturb later tests
            for pid in [*list_descendants(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, json.loads(out)["rows"], errors.read_text()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_prints_the_rows_so_far(monkeypatch, capfd, number, status):
    previous_handlers = [signal.signal(signal_number, handler) for signal_number, handler in HANDLERS.items()]
    monkeypatch.setattr(memory, "_build_cache_rows", lambda config: signal.raise_signal(number))
    try:
        assert entry.main(["bench", "memory", "size=debug"]) == status
        assert {signal_number: signal.getsignal(signal_number) for signal_number in HANDLERS} == HANDLERS
    finally:
        for signal_number, handler in zip(HANDLERS, previous_handlers, strict=True):
            signal.signal(signal_number, handler)
    out, errors = capfd.readouterr()
    assert out.count("T = 16") == out.count("T = 32") == 2
    message = f"attnlab: bench memory: stopped by {number.name}; 4 rows measured before it"
    assert errors.splitlines()[-1] == message


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.rare(sample=1)
def test_signal_ends_a_bench_and_its_children(tmp_path, number, status):
    words = ["start", "experiment=kv_cache_bytes", "rounds=50"]  # its plan, --help, and another command
    result, rows, errors = signal_bench(number, tmp_path, words, 3, "round 1 of 50")
    assert result == status
    assert rows[0]["name"] == "--help"
    assert errors.splitlines()[-1].startswith(f"attnlab: bench start: stopped by {number.name}; ")


@pytest.mark.parametrize(
    ("words", "progress", "min_commands"),
    [
        (["train", "size=debug", "rounds=1000"], "round 2 of 1000", 0),  # while Lightning trains
        (["sharing", "size=debug", "trainer.max_steps=50"], "8 runs, 2 at a time", 2),  # the second sweep
    ],
)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.rare(sample=1)
def test_signal_ends_a_training(tmp_path, words, progress, min_commands, number, status):
    result, _, errors = signal_bench(number, tmp_path, words, min_commands, progress)
    assert result == status, errors
    assert "Traceback" not in errors
