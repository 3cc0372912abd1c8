"""Results of other programs: what each format means, and one line for what is ambiguous."""

import json
import math

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from attnlab.errors import InvalidConfig
from attnlab.external.result_files import count_equal_values, count_significant_digits, read_runs
from attnlab.store import run_directories
from attnlab.store.run_schema import Failure, RunResult


@pytest.fixture
def read(tmp_path):
    """`read(text)`: write a table and read its runs."""

    def call(text, metric="loss", arm=None, name="a.csv"):
        (tmp_path / name).write_text(text, "utf-8")
        return read_runs(tmp_path / name, metric, arm)

    return call


def get_facts(runs):
    return [(run.seed, run.status, run.values) for run in runs]


CSV = "seed,step,loss\n3,10,2.0\n3,20,1.5\n4,20,1.0\n"
EXACT = [0.1, 1e-300, math.pi, 2**-1074]


def test_all_tables_mean_the_same(read, tmp_path):
    rows = [
        {"seed": 3, "step": 10, "loss": 2.0},
        {"seed": 3, "step": 20, "loss": 1.5},
        {"seed": 4, "step": 20, "loss": 1.0},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for runs in (
        read(CSV), read_runs(tmp_path / "a.parquet", "loss"), read(CSV.replace(",", "\t"), name="a.TSV"),
        read("\ufeff" + CSV.replace("\n", "\r\n"), name="excel.csv"),
        read("\n".join(map(json.dumps, rows)) + "\n", name="a.jsonl"),
    ):  # fmt: skip
        assert get_facts(runs) == [("3", "done", (2.0, 1.5)), ("4", "done", (1.0,))]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("name,seed,loss\nx,1,2.5\ny,2,2.25\n", [("1", "done", (2.5,)), ("2", "done", (2.25,))]),
        ("run,loss\nx,2.5\ny,2.25\n", [(None, "done", (2.5,)), (None, "done", (2.25,))]),
        ("seed,step,loss,other\n1,20,2,\n1,10,3,\n1,15,,7\n", [("1", "done", (3.0, 2.0))]),  # sparse
        (
            "seed,loss,State\n1,2.0,finished\n2,nan,diverged\n3,,crashed\n",
            [("1", "done", (2.0,)), ("2", "diverged", ()), ("3", "missing", ())],
        ),
        (
            "seed,loss\n" + "".join(f"{seed},{value!r}\n" for seed, value in enumerate(EXACT)),
            [(str(seed), "done", (value,)) for seed, value in enumerate(EXACT)],
        ),
        (
            '{"run": "a\u2028b", "loss": 1.5}\n{"run": "c", "loss": 2}\n',
            [(None, "done", (1.5,)), (None, "done", (2.0,))],
        ),
        (  # chart of W&B
            '"Step","a-seed1 - loss","a-seed1 - loss__MIN","a-seed2 - loss"\n'
            '"0","4.0","4.0","5.0"\n"100","3.0","3.0",""\n"200","","","2.5"\n',
            [("1", "done", (4.0, 3.0)), ("2", "done", (5.0, 2.5))],
        ),
        (
            "Step,a-seed1 - loss,a_seed=2 - loss,reseed3 - loss\n20,Infinity,NaN,2\n10,3,4,3\n",
            [("1", "diverged", ()), ("2", "diverged", ()), (None, "done", (3.0, 2.0))],
        ),
    ],
)
def test_rows_of_runs_and_of_evaluations(read, text, runs):
    assert get_facts(read(text, name="a.jsonl" if text.startswith("{") else "a.csv")) == runs


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("epoch,loss,val_loss\n0,3.5,3\n1,2.5,2\n", (0, 1)),  # CSVLogger of Keras
        ("train/global_step,epoch,val_loss\n10,0.5,3\n20,1.0,2\n", (10, 20)),  # HF Trainer in W&B
        ("step,epoch,val_loss\n10,0,3\n20,0,2\n", (10, 20)),
    ],
)
def test_evaluations_of_a_file_without_seeds_are_one_run(read, text, steps):
    [run] = read(text, "val_loss")
    assert (run.steps, run.values) == (steps, (3.0, 2.0))
    with pytest.raises(InvalidConfig, match=f"step {steps[0]} is there twice"):
        read(text + text.partition("\n")[2], "val_loss")


def test_tensorboard_folder(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for seed, values in enumerate([(2.0, 1.75, 1.5), (1.0, 0.75), (2.0, math.nan)]):
        with SummaryWriter(str(tmp_path / f"run_seed{seed}")) as writer:
            for step, value in enumerate(values):
                writer.add_scalar("loss/val", value, step)
    expected = [("0", "done", (2.0, 1.75, 1.5)), ("1", "done", (1.0, 0.75)), ("2", "diverged", ())]
    assert get_facts(read_runs(tmp_path, "loss/val")) == expected
    with pytest.raises(InvalidConfig, match=r"no tag loss/va .*nearest: loss/val"):
        read_runs(tmp_path, "loss/va")


def test_run_directories(tmp_path):
    expected = []
    for seed, status in enumerate(["done", "diverged", "killed", "crashed"]):
        is_done = status == "done"
        result = {"metrics": {"val/loss": 2.0}} if is_done else {"failure": Failure(message="x")}
        record = RunResult(id=f"r{seed}", seed=seed, config={"seed": 1}, status=status, **result)
        (tmp_path / record.id).mkdir()
        run_directories.write_run_result(tmp_path / record.id, record)
        kind = status if status in ("done", "diverged") else "missing"
        expected.append((str(seed), kind, (2.0,) if is_done else ()))
    assert get_facts(read_runs(tmp_path, "val/loss")) == expected
    with pytest.raises(InvalidConfig, match=r"no metric val/los \(nearest: val/loss\)"):
        read_runs(tmp_path, "val/los")
    (tmp_path / "r0" / "curves.parquet").write_text("PAR")
    with pytest.raises(InvalidConfig, match=r"r0/curves.parquet: cannot be read \(.+\): write it again$"):
        read_runs(tmp_path, "val/loss")


def test_reductions(read):
    [run] = read("step,loss\n1,3\n2,1\n3,2\n4,4\n")
    reduced = [run.reduce(how) for how in ("last", "mean:1", "mean:3")]
    assert reduced == [4, 4, pytest.approx(7 / 3)]
    assert [run.reduce("best", lower_is_better=is_lower) for is_lower in (True, False)] == [1, 4]
    for how in ("mean:5", "mean:0", "min", "mean:"):
        with pytest.raises(InvalidConfig, match="--reduce"):
            run.reduce(how)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed,loss\n1,2\n1,3\n", r"a.csv:3: the run of .*a.csv:2 again: if both are evaluations"),
        ("run,seed,loss\nx,1,2\ny,1,3\n", r"a.csv:3: has the seed 1 of .*a.csv:2: one run counts once"),
        (
            "seed,loss\n1,nan\n",
            r"a.csv:2: loss is nan: if the run diverged, write diverged .* leave the cell",
        ),
        ("loss\n2.5\n2.25\n", r"a.csv: no column says which run a row is: add a column seed or run"),
        ("run,words,loss\nr1,10,3\nr1,20,2\n", r"a.csv:3: the run of .*a.csv:2 again: .*tokens, samples"),
        ("run,loss\nx,3\n,2\n", r"a.csv:3: run is empty, so nothing says which run the row is"),
        ("seed,loss\n1,2\nmean,2\n", r"a.csv:3: seed=mean: a summary of rows is no run: remove it"),
        (",loss\n0,2\nstd,0.1\n", r"a.csv:3: the first cell=std: a summary"),
        ("seed,loss\nx,2\n", r"a.csv:2: seed=x is not a whole number"),
        ("seed,loss,loss__MIN\n1,2,1.5\n", r"a.csv:2: loss is 2 and loss__MIN is 1.5: a mean of runs"),
        ("Step,g - loss,g - loss__MAX\n1,2,2\n2,2,3\n", r"a.csv:3: g - loss is 2 and g - loss__MAX is 3"),
        (
            "Name,Created,_step,loss\nx,2025-06-01T10:00Z,1,2\nx,2025-06-02T10:00Z,2,2\n",
            "began at another time",
        ),
        (
            "Name,State,_step,loss\nx,finished,1,2\nx,finished,2,2\n",
            r"the name x is that of .* export the column ID",
        ),
        ("seed,loss,started\n1,2,2999-01-01T00:00:00Z\n", r"started=2999-01-01T00:00:00Z is in the future"),
        ("run_id,seed,loss\nx,1,2\nx,2,3\n", r"a.csv:3: has the run id x of .*a.csv:2"),
        ("seed,loss\n1,2.3456789\n2,2.3456789\n", r"a.csv:3: has the value 2.3456789 of .*a.csv:2"),
        (
            "seed,step,loss\n1,1,4\n1,2,3\n1,3,2\n2,1,4\n2,2,3\n2,3,2\n",
            r"a.csv:5: has the curve of .*a.csv:2",
        ),
        (
            "Step,a - loss\n20,2\n10,nan\n",
            r"a: step 10: the value is nan, and later ones are finite",
        ),
        ("seed,loss\n1,inf\n", r"a.csv:2: loss is inf"),
        ("seed,loss\n1,\n", r"a.csv:2: loss is empty"),
        ("seed,loss\n1,2\n2,abc\n", r"a.csv:3: loss=abc is not a number"),
        ("seed,loss\n1,2,3\n", r"a.csv:2: 3 cells in a table of 2 columns"),
        ("seed,loss,loss\n1,2,3\n", r"a.csv:1: the column loss is there twice"),
        ("seed,loss\n", r"a.csv: has no rows"),
        ("", r"a.csv: has no rows"),
        ("seed,los\n1,2\n", r"no column loss \(--metric\) \(nearest: los\)"),
        ("step,loss\n1,2\n1,3\n", r"step 1 is there twice: add a column `seed`"),
        ("step,loss\n1.5,2\n", r"step=1.5 is not a number of steps"),
        ("step,loss\n-1,2\n", r"step=-1 is not a number of steps"),
        ("seed,step,loss,x\n1,1,,2\n", r"a run without any value of loss"),
        ("seed,loss,status\n1,2,done\n2,2,dunno\n", r"a.csv:3: status dunno: unknown"),
        ("seed,loss,started\n1,2,\n2,2,yesterday\n", r"a.csv:3: started=yesterday is not a time"),
        ("seed,loss,Created\n1,2,01/02/2020 10:00\n", r"a.csv:2: Created=01/02/2020 10:00 is not a time"),
    ],
)
def test_ambiguous_tables_are_rejected_with_the_place(read, text, message):
    with pytest.raises(InvalidConfig, match=message):
        read(text)


def test_axes_statuses_and_equal_values(read):
    """A curve along any known axis is one run, whose status is that of its last row."""
    runs = read("run,tokens,loss,status\nr,20,2,finished\nr,10,3,running\ns,10,2,\ns,20,2,\n")
    facts = [(run.name, run.axis, run.steps, run.status, run.rows) for run in runs]
    assert facts == [("r", "tokens", (10, 20), "done", 2), ("s", "tokens", (10, 20), "done", 2)]
    assert count_equal_values(runs) == 2  # of one digit: by chance
    assert [count_significant_digits(x) for x in (3.2793, 1e-300, 0.0025, -12.5, 0.0)] == [5, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("name", "text", "arms", "message"),
    [
        ("a.txt", "1\n", None, r"a.txt: cannot read .txt: give a .csv"),
        ("a.jsonl", '{"loss": 1}\n[1]\n', None, r"a.jsonl:2: not an object"),
        ("a.jsonl", "{\n", None, r"a.jsonl:1: not JSON"),
        ("a.parquet", "no", None, r"a.parquet: cannot be read"),
        ("a.csv", "arm,loss\na,1\n", "arms", r"no column arms \(--arm-column\) \(nearest: arm\)"),
        ("a.csv", "arm,seed,loss\na,1,1\n,2,2\n", "arm", r"a.csv:3: no arm in the column arm"),
        ("", "", None, "holds neither run directories of attnlab nor event files"),
        ("", "", "arm", "--arm-column names a column of a table"),
        ("none.csv", "", None, "no such file or folder"),
    ],
)
def test_unreadable_paths_and_arms_are_rejected(read, tmp_path, name, text, arms, message):
    with pytest.raises(InvalidConfig, match=message):
        read(text, "loss", arms, name) if text else read_runs(tmp_path / name, "loss", arms)
