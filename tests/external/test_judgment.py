"""`judge A.csv B.csv`: which test decides, what it says, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.__main__ import main
from attnlab.cli.verbs.judge import EXIT_BY_VERDICT
from attnlab.errors import InvalidConfig
from attnlab.external.judgment import judge_runs, split_by_arm
from attnlab.external.question import Question
from attnlab.external.result_files import ExternalRun
from attnlab.report.schema import Verdict
from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult

BASE = [3.0, 3.02, 2.98, 3.01, 2.99, 3.0]


def make_runs(values, seeds=None, name="a", steps=(100,)):
    seeds = range(len(values)) if seeds == "same" else seeds or [None] * len(values)
    return [
        ExternalRun(
            f"{name}:{row}", None, None if seed is None else str(seed),
            "diverged" if value is None else "done", () if value is None else steps,
            () if value is None else (value,),
        )
        for row, (value, seed) in enumerate(zip(values, seeds, strict=True))
    ]  # fmt: skip


def judge(a, b, *, same_unit=False, **settings):
    defaults = {"margin": 0.01, "lower_is_better": True, "looks": "once"}
    return judge_runs(a, b, Question("val_loss", **defaults | settings), same_unit=same_unit)


def test_equal_seeds_are_paired_in_any_order():
    better = [
        value - 0.05 + noise for value, noise in zip(BASE, (0.001, -0.001, 0, 0.002, 0, -0.002), strict=True)
    ]
    a, b = make_runs(BASE, "same"), make_runs(better, "same")[::-1]
    result = judge(a, b)
    expected = scipy_stats.ttest_rel(better, BASE).confidence_interval(0.95)
    assert (result.decision.low, result.decision.high) == pytest.approx((expected.low, expected.high))
    assert (result.paired, result.decision.holds, result.basis) == (True, True, "t")
    assert result.pairing == "paired by 6 seeds, which both sides have"
    assert result.gain > 20


def test_other_seeds_are_compared_by_welch():
    better = [value - 0.05 for value in BASE]
    for seeds, reason in [
        (None, "not every run has a seed"), (range(1, 7), "one side alone has seeds 0, 6"),
    ]:  # fmt: skip
        result = judge(make_runs(BASE, "same"), make_runs(better, seeds))
        expected = scipy_stats.ttest_ind(better, BASE, equal_var=False).confidence_interval(0.95)
        assert (result.decision.low, result.decision.high) == pytest.approx((expected.low, expected.high))
        assert not result.paired
        assert reason in result.pairing


@pytest.mark.parametrize(
    ("shift", "lower_is_better", "holds"),
    [
        (-0.2, True, True),
        (0.2, True, False),
        (0.2, False, True),
        (-0.2, False, False),
        (-0.01, True, None),
        (0.01, False, None),
    ],
)
def test_direction_and_margin(shift, lower_is_better, holds):
    values = [value + shift for value in BASE]
    for looks in ("once", "anytime"):
        result = judge(make_runs(BASE), make_runs(values), lower_is_better=lower_is_better, looks=looks)
        assert result.decision.holds is holds
        assert result.decision.estimate == pytest.approx(shift)


@pytest.mark.parametrize("seeds", ["same", None])
@pytest.mark.parametrize("lower_is_better", [True, False])
def test_diverged_runs_count_against_their_side(seeds, lower_is_better):
    sign = 1 if lower_is_better else -1
    base = [sign * value for value in np.random.default_rng(0).normal(3, 0.01, 12)]
    mostly_diverged = [None] * 9 + [value - sign * 0.5 for value in base[9:]]
    worse = judge(make_runs(base, seeds), make_runs(mostly_diverged, seeds), lower_is_better=lower_is_better)
    assert (worse.basis, worse.count_diverged()) == ("ranks", (0, 9))
    assert worse.decision.holds is not True
    better = judge(make_runs(mostly_diverged, seeds), make_runs(base, seeds), lower_is_better=lower_is_better)
    assert better.decision.holds is not False
    every_pair = judge(
        make_runs([*base[:11], None], seeds),
        make_runs([value - sign * 0.5 for value in base], seeds),
        lower_is_better=lower_is_better,
    )
    assert every_pair.decision.holds is True


def test_half_of_a_side_that_diverged_counts_wherever_it_is_in_the_file():
    random = np.random.default_rng(1)
    good, base = list(random.normal(2.9, 0.01, 12)), list(random.normal(3.0, 0.01, 12))
    for b in (good + [None] * 12, [None] * 12 + good):
        result = judge(make_runs(base, range(12)), make_runs(b, range(50, 74)))
        assert (result.basis, result.decision.holds) == ("ranks", None)
        assert 3 <= sum(np.isinf(second) for _, second in result.pairs) <= 9


def test_a_missing_interval_has_its_reason():
    assert judge(make_runs([3.0, 3.0]), make_runs(BASE)).obstacle.startswith("all values of a side are equal")
    same = judge(make_runs(BASE, "same"), make_runs([value - 0.5 for value in BASE], "same", "b"))
    assert same.obstacle.startswith("all differences are equal")
    few = judge(make_runs(BASE[:3]), make_runs([2.9, 2.91, 2.92], name="b"), looks="anytime")
    assert few.obstacle == "too few runs: 4 a side may decide"
    assert judge(make_runs(BASE), make_runs([value - 0.5 for value in BASE], name="b")).obstacle == ""
    exact = [value + 1e-9 for value in BASE[:5]]
    with pytest.raises(InvalidConfig, match=r"b:5: has the value 3\.000000001 of a:0: one run counts"):
        judge(make_runs(exact), make_runs([*BASE[:5], exact[0]], name="b"))
    named, again = (
        [replace(run, name=f"r{n}") for n, run in enumerate(make_runs(BASE, name=side))] for side in "ab"
    )
    with pytest.raises(InvalidConfig, match="has the values and the name r0 of a:0"):
        judge(named, again)
    result = judge(make_runs(BASE), make_runs(BASE[::-1], name="b"))
    assert result.equal_values == 12
    assert result.describe_counts().startswith("A: 6 rows read, 6 runs found, 6 used; B: ")


def test_missing_runs_are_counted_and_left_out():
    lost = ExternalRun("b:9", None, "9", "missing", (), ())
    result = judge(make_runs(BASE, "same"), [*make_runs(BASE[::-1], "same"), lost])
    assert (result.missing, result.paired) == ((0, 1), True)


def test_required_runs_suffice_in_a_simulation():
    random = np.random.default_rng(0)
    a, b = random.normal(0, 1, 200), random.normal(-0.8, 1, 200)
    a, b = (a - a.mean()) / a.std(ddof=1) + 5, (b - b.mean()) / b.std(ddof=1) + 4.2
    n = judge(make_runs(a), make_runs(b), margin=0.1).required_runs
    assert n == 34  # 0.7 sd beyond the margin at 5%, two-sided; Cohen 1988, table 2.4.1, rounds to 33
    draws = random.normal([[[0]], [[-0.8]]], 1, (2, 2000, n))
    p = scipy_stats.ttest_ind(draws[1] + 0.1, draws[0], axis=1, equal_var=False, alternative="less").pvalue
    assert (p <= 0.025).mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (make_runs(BASE), make_runs([3.0]), "B: 1 finished run: a comparison takes two or more"),
        (make_runs([3.0, None]), make_runs(BASE), "A: 1 finished run"),
        (
            make_runs(BASE),
            make_runs(BASE, name="b", steps=(50,)),
            "b:0: --reduce last reads step 50, and in a:0 step 100",
        ),
        (make_runs(BASE[:5]), make_runs([value / np.log(2) for value in BASE[:5]]), "side and bits"),
        (
            make_runs(BASE[:5]),
            make_runs([np.exp(value) for value in BASE[:5]]),
            "nats on one side and perplex",
        ),
        (make_runs([value / 100 for value in BASE]), make_runs(BASE), "fractions on one side and percent"),
    ],
)
def test_unlike_sides_are_rejected(a, b, message):
    with pytest.raises(InvalidConfig, match=message):
        judge(a, b)


def test_units_can_be_confirmed():
    assert judge(make_runs(BASE), make_runs([value / 100 for value in BASE]), same_unit=True).decision.holds


def test_two_arms_of_a_file():
    runs = [ExternalRun("a", arm, None, "done", (), (1.0,)) for arm in ("x", "y", "x")]
    assert [[run.arm for run in side] for side in split_by_arm(runs, "a", "arm")] == [["x", "x"], ["y"]]
    with pytest.raises(InvalidConfig, match="1 arms in the column arm"):
        split_by_arm(runs[:1], "a", "arm")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, shift in {"a": 0.0, "better": -0.5, "worse": 0.5, "close": -0.01}.items():
        noise = 0.0 if name == "a" else 0.001  # else all differences would be equal
        rows = "".join(f"{seed},{value + shift + noise * (seed % 3)}\n" for seed, value in enumerate(BASE))
        (tmp_path / f"{name}.csv").write_text("seed,loss\n" + rows)
    arms = "".join(
        f"{arm},{arm}{n},{value + shift}\n"
        for arm, shift in (("x", 0.0), ("y", -0.5))
        for n, value in enumerate(BASE)
    )
    (tmp_path / "arms.csv").write_text("arm,run,loss\n" + arms)
    (tmp_path / "curves.csv").write_text(
        "seed,step,loss\n" + "".join(f"{s},{t},{4 - t}\n" for s in (1, 2) for t in (1, 2))
    )
    return tmp_path


WORDS = ["--metric", "loss", "--lower-is-better", "--margin", "0.01"]


@pytest.mark.parametrize(
    ("words", "claim"),
    [
        (["a.csv", "better.csv"], Verdict.SUPPORTED),
        (["a.csv", "worse.csv"], Verdict.REFUTED),
        (["a.csv", "close.csv"], Verdict.INCONCLUSIVE),
        (["arms.csv", "--arm-column", "arm"], Verdict.SUPPORTED),
    ],
)
def test_exit_status_agrees_with_the_json(files, capsys, words, claim):
    status = main(["judge", *words, *WORDS])
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (status, summary["verdict"]) == EXIT_BY_VERDICT[claim]
    assert summary["claim"] == claim
    assert summary["sentence"] in err
    assert summary["exploratory"]
    assert len(summary["a"]["values"]) == summary["b"]["runs"] == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.csv", "b.csv", *WORDS], "b.csv: no such file or folder"),
        (["a.csv", "heads=gqa", *WORDS], "heads=gqa: the other side is a file of runs"),
        (["heads=gqa", "a.csv", *WORDS], "heads=gqa: the other side is a file of runs"),
        (["a.csv", "a.csv", *WORDS], "a.csv: both sides are the same file"),
        (["a.csv", *WORDS], "judge takes 2 files without --arm-column"),
        (["arms.csv", "a.csv", "--arm-column", "arm", *WORDS], "judge takes 1 file with --arm-column"),
        (["a.csv", "better.csv", "size=S", *WORDS], "judge takes 2 files"),
        (["a.csv", "better.csv", "--metric", "loss", "--margin", "1"], "add --lower-is-better or"),
        (["a.csv", "better.csv", "--metric", "loss", "--lower-is-better"], "--margin is missing"),
        (["a.csv", "better.csv", "--lower-is-better", "--margin", "1"], "--metric is missing"),
        (["a.csv", "better.csv", *WORDS, "--budget", "flops"], "--budget: runs that were trained elsewhere"),
        (["a.csv", "better.csv", *WORDS, "--reduce", "mean:2"], "a.csv:2: --reduce mean:2 needs 2 values"),
        (["a.csv", "curves.csv", *WORDS, "--reduce", "first"], "--reduce first: must be last, best"),
        (["heads=mha", "heads=gqa", "--same-unit"], "--same-unit: only for runs that were trained elsewhere"),
        (["--noise", "a.csv", *WORDS], "--lower-is-better: has no effect with --noise"),
    ],
)
def test_invalid_commands_are_rejected_in_one_line(files, capsys, words, message):
    assert main(["judge", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1


def write_run(folder, seed, loss, *, lr=0.1, tokens=100, leakage=None, **data):
    facts = {"unit": "token", "validation": "v", "val_text": "t", "vocab_size": 99} | data
    result = RunResult(
        id=f"{folder.name}{seed}", status="done", seed=seed, metrics={"val/loss": loss + seed / 64},
        config={"seed": seed, "optim": {"lr": lr}}, estimate={"tokens": tokens, "data": facts},
        metric_definitions={"val/loss": {"name": "val/loss", "unit": "nats", "evaluated_on": "targets"}},
        leakage=leakage or {},
    )  # fmt: skip
    (folder / result.id).mkdir(parents=True)
    run_directories.write_run_result(folder / result.id, result)


def test_own_run_directories_get_the_checks_of_a_sweep(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--metric", "val/loss", "--lower-is-better", "--margin", "0.01", "--looks", "once"]
    sides = {
        "fair": {}, "double": {"tokens": 200}, "bpe": {"unit": "word"}, "text": {"validation": "w"},
        "full": {"leakage": {"sees_future": 1, "next_token": 1}},
    }  # fmt: skip
    for seed in range(4):
        write_run(tmp_path / "base", seed, 3.0)
        for name, facts in sides.items():
            write_run(tmp_path / name, seed, 2.0 + 0.001 * seed**2, **facts)
    words = {
        "fair": "", "double": "tokens", "bpe": "per token in A and per word in B",
        "text": "validated on different data", "full": "B sees future tokens",
    }  # fmt: skip
    for name, word in words.items():
        status = main(["judge", "base", name, *flags])
        out, err = capsys.readouterr()
        assert status in (0, 5), err
        assert (status, json.loads(out)["claim"]) == ((5, "NOT COMPARABLE") if word else (0, "SUPPORTED"))
        assert word in err.replace("per word in B and per token in A", words["bpe"])
    write_run(tmp_path / "base", 9, 3.0, lr=0.2)
    assert main(["judge", "base", "fair", *flags]) == 2
    assert "A: holds runs of several configs (optim.lr is 0.1 and 0.2)" in capsys.readouterr().err
