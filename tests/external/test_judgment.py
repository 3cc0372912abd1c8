"""`judge A.csv B.csv`: which test decides, the report and the lines that it writes, and what is refused."""

import shlex
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from result_tables import write_table
from scipy import stats as scipy_stats

from attnlab.__main__ import main
from attnlab.cli.verdict_output import COLUMNS, EXIT_BY_VERDICT, MAX_LINES
from attnlab.errors import InvalidConfig
from attnlab.external.file_report import build_file_report
from attnlab.external.judgment import judge_runs
from attnlab.external.question import Question
from attnlab.external.result_files import ExternalRun, count_equal_values
from attnlab.report.schema import EffectVerdict, Verdict, load_report
from attnlab.report.section import Terms, Text, list_tables
from attnlab.report.sections import PageContext
from attnlab.report.sections import files as files_section
from attnlab.report.tables.wording import describe_claim
from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult

BASE = np.array([3.0, 3.02, 2.98, 3.01, 2.99, 3.0])
BETTER = np.array([2.951, 2.969, 2.93, 2.962, 2.94, 2.948])


def make_runs(values, seeds=None, name="a", steps=(100,)):
    seeds = range(len(values)) if seeds == "same" else seeds or [None] * len(values)
    return [
        ExternalRun(
            f"{name}:{row}", None, None if seed is None else str(seed),
            "diverged" if value is None else "done", () if value is None else steps,
            () if value is None else (float(value),),
        )
        for row, (value, seed) in enumerate(zip(values, seeds, strict=True))
    ]  # fmt: skip


def ask(**settings):
    return Question(
        **{"metric": "val_loss", "margin": 0.01, "lower_is_better": True, "looks": "once"} | settings
    )


def decide(a, b, *, same_unit=False, **settings):
    return judge_runs(a, b, ask(**settings), same_unit=same_unit)


def build_report(a, b, **settings):
    question = ask(**settings)
    judgment = judge_runs(a, b, question)
    return build_file_report({"x": a, "y": b}, ["x.csv", "y.csv"], judgment, question, None, "judge x y")


def test_equal_seeds_are_paired_and_others_compared_by_welch():
    expected = scipy_stats.ttest_rel(BETTER, BASE).confidence_interval(0.95)
    result = decide(make_runs(BASE, "same"), make_runs(BETTER, "same")[::-1])
    assert (result.decision.low, result.decision.high) == pytest.approx((expected.low, expected.high))
    assert (result.paired, result.decision.holds) == (True, True)
    assert result.pairing == "paired by 6 seeds, which both sides have"
    for seeds, reason in [
        (None, "not every run has a seed"), (range(1, 7), "one side alone has seeds 0, 6"),
    ]:  # fmt: skip
        result = decide(make_runs(BASE, "same"), make_runs(BETTER, seeds))
        expected = scipy_stats.ttest_ind(BETTER, BASE, equal_var=False).confidence_interval(0.95)
        assert (result.decision.low, result.decision.high) == pytest.approx((expected.low, expected.high))
        assert not result.paired
        assert reason in result.pairing


@pytest.mark.parametrize(
    ("shift", "lower_is_better", "holds"),
    [(-0.2, True, True), (0.2, True, False), (0.2, False, True), (-0.2, False, False), (-0.01, True, None),
     (0.01, False, None)],
)  # fmt: skip
def test_direction_and_margin(shift, lower_is_better, holds):

    for looks in ("once", "anytime"):
        result = decide(
            make_runs(BASE), make_runs(BASE + shift), lower_is_better=lower_is_better, looks=looks
        )
        assert result.decision.holds is holds
        assert result.decision.estimate == pytest.approx(shift)


@pytest.mark.parametrize("seeds", ["same", None])
@pytest.mark.parametrize("lower_is_better", [True, False])
def test_diverged_runs_count_against_their_side(seeds, lower_is_better):
    sign = 1 if lower_is_better else -1
    base = sign * np.random.default_rng(0).normal(3, 0.01, 12)
    mostly_diverged = [None] * 9 + [*base[9:] - sign * 0.5]
    runs, bad = make_runs(base, seeds), make_runs(mostly_diverged, seeds)
    report = build_report(runs, bad, lower_is_better=lower_is_better)
    [claim] = report.verdict.claims
    assert claim.basis == ("ranks" if seeds else "random pairs")
    assert claim.verdict != Verdict.SUPPORTED
    assert [arm.diverged for arm in report.files.arms] == [0, 9]
    assert len(report.failures.runs) == report.failures.counts[1].failed == 9
    assert decide(bad, runs, lower_is_better=lower_is_better).decision.holds is not False
    every_pair = decide(
        make_runs([*base[:11], None], seeds),
        make_runs(base - sign * 0.5, seeds),
        lower_is_better=lower_is_better,
    )
    assert every_pair.decision.holds is True


def test_half_of_a_side_that_diverged_counts_wherever_it_is_in_the_file():
    random = np.random.default_rng(1)
    good, base = list(random.normal(2.9, 0.01, 12)), list(random.normal(3.0, 0.01, 12))
    for b in (good + [None] * 12, [None] * 12 + good):
        result = decide(make_runs(base, range(12)), make_runs(b, range(50, 74)))
        assert (result.is_ranked, result.decision.holds) == (True, None)
        assert 3 <= sum(np.isinf(second) for _, second in result.pairs) <= 9


def test_a_missing_interval_has_its_reason():
    assert decide(make_runs([3.0, 3.0]), make_runs(BASE)).obstacle.startswith(
        "all values of a side are equal"
    )
    same = decide(make_runs(BASE, "same"), make_runs(BASE - 0.5, "same", "b"))
    assert same.obstacle.startswith("all differences are equal")
    few = build_report(make_runs(BASE[:3]), make_runs([2.9, 2.91, 2.92], name="b"), looks="anytime")
    assert few.verdict.run_warnings == ["No interval: too few runs: 4 a side may decide."]
    assert "no interval" in describe_claim(few.verdict.claims[0])


def test_a_run_counts_once_and_lost_runs_not_at_all():
    exact = BASE[:5] + 1e-9
    with pytest.raises(InvalidConfig, match=r"b:5: has the value 3\.000000001 of a:0: one run counts"):
        decide(make_runs(exact), make_runs([*BASE[:5], exact[0]], name="b"))
    named, again = (
        [replace(run, name=f"r{n}") for n, run in enumerate(make_runs(BASE, name=side))] for side in "ab"
    )
    with pytest.raises(InvalidConfig, match="has the values and the name r0 of a:0"):
        decide(named, again)
    lost = ExternalRun("b:9", None, "9", "missing", (), ())
    a, b = make_runs(BASE, "same"), [*make_runs(BASE[::-1], "same", "b"), lost]
    files = build_report(a, b).files
    assert (files.equal_values, count_equal_values(a)) == (12, 2)
    assert [(arm.rows_read, arm.runs_found, arm.runs, arm.missing) for arm in files.arms] == [
        (6, 6, 6, 0), (7, 7, 6, 1),
    ]  # fmt: skip
    assert files.pairing == "paired by 6 seeds, which both sides have; 1 left out, for which a run is missing"


NATS = make_runs(BASE[:5])


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
        (NATS, make_runs(BASE[:5] / np.log(2)), "side and bits"),
        (NATS, make_runs(np.exp(BASE[:5])), "nats on one side and perplex"),
        (make_runs(BASE / 100), make_runs(BASE), "fractions on one side and percent"),
    ],
)
def test_unlike_sides_are_rejected(a, b, message):
    with pytest.raises(InvalidConfig, match=message):
        decide(a, b)
    if a is NATS:
        assert decide(a, b, same_unit=True).decision.holds is False


@pytest.mark.parametrize("seeds", ["same", None])
def test_the_report_is_that_of_an_experiment_of_two_arms(seeds):
    """Claim, effect and section of files have the numbers of the decision."""
    a, b = make_runs(BASE, seeds), make_runs(BETTER, seeds, "b")
    report = build_report(a, b, looks=(6, 12))
    decision = decide(a, b, looks=(6, 12)).decision
    [claim], [effect] = report.verdict.claims, report.effects
    assert (claim.decision.estimate, claim.decision.low) == (decision.estimate, decision.low)
    assert (claim.arm, claim.against, claim.region) == ("y", "x", (-np.inf, -0.01))
    assert (effect.mean, effect.verdict in EffectVerdict) == (claim.decision.estimate, True)
    assert [pair.seed for pair in effect.pairs] == ([*range(6)] if seeds else [])
    assert describe_claim(claim).endswith(f"of 2, {'6 paired seeds' if seeds else '12 runs'}.")
    assert claim.interim_analyses.planned == [6, 12]
    section = files_section.build(report, PageContext())
    tables = list_tables([section])
    assert [row["mean"] for row in tables["files"].iterate_records()] == [
        pytest.approx(np.mean(side)) for side in (BASE, BETTER)
    ]
    rows = list(tables["file_runs"].iterate_records())
    assert [row["value"] for row in rows] == [*BASE, *BETTER]
    assert [row["seed"] for row in rows] == (2 * [*range(6)] if seeds else 12 * [None])
    [power] = [block.plain for block in section.blocks if isinstance(block, Text)]
    assert power.startswith(f"{report.files.required_runs_per_side} runs per arm decide the claim")
    [terms] = [dict(block.pairs) for block in section.blocks if isinstance(block, Terms)]
    assert ("gain of pairing" in terms, terms["declared"]) == (seeds == "same", "no")
    assert terms["interim analyses"] == "at 6, 12 runs per arm"


@pytest.fixture
def files(folder):
    noise = 0.001 * (np.arange(6) % 3)  # else all differences would be equal
    write_table("a.csv", BASE)
    for name, shift in {"better": -0.5, "worse": 0.5, "close": -0.01}.items():
        write_table(f"{name}.csv", BASE + shift + noise)
    rows = [
        f"{arm},{arm}{n},{value + shift}"
        for arm, shift in (("x", 0.0), ("y", -0.5))
        for n, value in enumerate(BASE)
    ]
    (folder / "arms.csv").write_text("\n".join(["arm,run,loss", *rows]))
    return folder


WORDS = "--metric loss --lower-is-better --margin 0.01"


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("a.csv better.csv", Verdict.SUPPORTED),
        ("a.csv worse.csv", Verdict.REFUTED),
        ("a.csv close.csv", Verdict.INCONCLUSIVE),
        ("arms.csv --arm-column arm", Verdict.SUPPORTED),
    ],
)
def test_lines_json_report_and_exit_status_agree(files, judge, capfd, words, verdict):
    status, summary = judge(words, WORDS)
    assert (status, summary["verdict"]) == EXIT_BY_VERDICT[verdict]
    assert (summary["claim"], summary["exploratory"]) == (verdict, True)
    report = load_report(files / summary["report"])
    assert summary["sentence"] == describe_claim(report.verdict.claims[0])
    assert len(summary["a"]["values"]) == summary["b"]["runs"] == 6
    assert main(shlex.split(report.reproduce.command)[3:]) == status
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert (len(lines) <= MAX_LINES, max(map(len, lines)) <= COLUMNS, err) == (True, True, "")
    assert " ".join(out.split()).endswith(summary["sentence"])
    assert f"report: {summary['report']}" in lines


def test_other_questions_have_other_reports_and_an_unwritable_folder_costs_the_report_alone(
    files, judge, capfd
):
    words = f"a.csv better.csv {WORDS}"
    reports = {judge(words, more)[1]["report"] for more in ("", "--looks once", "--margin 0.02", "")}
    assert len(reports) == 3
    (files / "reports").rename(files / "moved")
    (files / "reports").write_text("a file, so no folder")
    main(["judge", *words.split(), "--json"])
    out, err = capfd.readouterr()
    assert ('"claim": "SUPPORTED"' in out, '"report": null' in out, "no report: " in err) == (True,) * 3
    assert stat.S_ISREG((files / "reports").stat().st_mode)


@pytest.mark.usefixtures("blank_charts")
def test_the_page_is_rendered_on_demand_as_that_of_any_report(files, judge):
    words = f"arms.csv --arm-column arm {WORDS}"
    folder = (files / judge(words)[1]["report"]).parent
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    judge(words, "--page")
    page = (folder / "report.html").read_text("utf-8")
    assert "unpaired: not every run has a seed" in page
    assert "EXPLORATORY" in page
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text("utf-8") == page


@pytest.mark.usefixtures("files")
def test_files_are_judged_without_the_libraries_of_training():
    script = (
        "import sys\nfrom attnlab.__main__ import main\n"
        f"status = main('judge a.csv better.csv {WORDS}'.split())\n"
        "heavy = 'torch hydra omegaconf pytorch_lightning wandb pyarrow scipy.stats scipy.optimize "
        "scipy.integrate vl_convert jinja2'.split()\n"
        "sys.exit(f'{status} {[name for name in heavy if name in sys.modules]}')"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stderr == "0 []\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a.csv b.csv WORDS", "b.csv: no such file or folder"),
        ("a.csv heads=gqa WORDS", "heads=gqa: the other side is a file of runs"),
        ("heads=gqa a.csv WORDS", "heads=gqa: the other side is a file of runs"),
        ("a.csv a.csv WORDS", "a.csv: both sides are the same file"),
        ("a.csv WORDS", "judge takes 2 files without --arm-column"),
        ("arms.csv a.csv --arm-column arm WORDS", "judge takes 1 file with --arm-column"),
        ("a.csv better.csv size=S WORDS", "judge takes 2 files"),
        ("a.csv better.csv --metric loss --margin 1", "add --lower-is-better or"),
        ("a.csv better.csv --metric loss --lower-is-better", "--margin is missing"),
        ("a.csv better.csv --lower-is-better --margin 1", "--metric is missing"),
        ("a.csv better.csv WORDS --budget flops", "--budget: runs that were trained elsewhere"),
        ("a.csv better.csv WORDS --reduce mean:2", "a.csv:2: --reduce mean:2 needs 2 values"),
        (
            "a.csv --arm-column seed WORDS",
            "6 arms in the column seed (0, 1, 2, 3, 4, 5): a comparison",
        ),
        ("a.csv better.csv WORDS --reduce first", "--reduce first: must be last, best"),
        ("heads=mha heads=gqa --same-unit", "--same-unit: only for runs that were trained elsewhere"),
        ("heads=mha heads=gqa --page", "--page: only for runs that were trained elsewhere"),
        ("--noise a.csv WORDS", "--lower-is-better: has no effect with --noise"),
        ("--noise a.csv", "--metric is missing"),
        ("heads=gqa --noise a.csv --metric loss", "remove heads=gqa"),
        ("--noise a.csv --metric loss --margin 5%", "--margin 5%: for files, give a positive"),
        ("--noise a.csv --metric loss --margin -1", "--margin -1"),
        ("--noise a.csv --metric loss --reduce best", "--reduce best: add --lower-is-better"),
    ],
)
@pytest.mark.usefixtures("files")
def test_invalid_commands_are_rejected_in_one_line(refuse, words, message):
    refuse("judge " + words.replace("WORDS", WORDS), message)


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


def test_own_run_directories_get_the_checks_of_a_sweep(folder, judge):
    flags = "--metric val/loss --lower-is-better --margin 0.01 --looks once"
    sides = {
        "fair": ({}, ""), "double": ({"tokens": 200}, "tokens"),
        "bpe": ({"unit": "word"}, "per word in bpe"),
        "text": ({"validation": "w"}, "validated on different data"),
        "full": ({"leakage": {"sees_future": 1, "next_token": 1}}, "full sees future tokens"),
    }  # fmt: skip
    for seed in range(4):
        write_run(folder / "base", seed, 3.0)
        for name, (facts, _) in sides.items():
            write_run(folder / name, seed, 2.0 + 0.001 * seed**2, **facts)
    for name, (facts, reason) in sides.items():
        status, summary = judge("base", name, flags)
        assert (status, summary["claim"]) == ((5, "NOT COMPARABLE") if reason else (0, "SUPPORTED"))
        assert reason in summary["sentence"]
        report = load_report(folder / summary["report"])
        assert report.budget.find_row("tokens").get_cell(name).value == facts.get("tokens", 100)
        assert (report.effects[0].mean is None, report.effects[0].unit) == (bool(reason), "nats")
    write_run(folder / "base", 9, 3.0, lr=0.2)
    status, error = judge("base fair", flags)
    assert (status, "base: holds runs of several configs (optim.lr is 0.1 and 0.2)" in error) == (2, True)
