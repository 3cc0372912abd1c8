"""`judge A.csv B.csv`: which test decides, the report and the lines that it writes, and what is refused."""

import shlex
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from result_tables import write_table
from scipy.stats import ttest_ind, ttest_rel

from attnlab.__main__ import main
from attnlab.cli.verdict_output import COLUMNS, EXIT_BY_VERDICT, MAX_LINES
from attnlab.errors import InvalidConfig
from attnlab.external.file_report import build_file_report
from attnlab.external.judgment import judge_runs
from attnlab.external.question import Question, write_declaration
from attnlab.external.result_files import ExternalRun, count_equal_values
from attnlab.report.schema import Verdict, load_report
from attnlab.report.section import Terms, Text, list_tables
from attnlab.report.sections import PageContext, files_section
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


def make_sides(a, b, seeds):
    """Return the runs of two sides, of which each is given as runs or as values."""
    sides = {"a": a, "b": b}.items()
    return [s if isinstance(s[0], ExternalRun) else make_runs(s, seeds, name) for name, s in sides]


def decide(a, b, seeds=None, *, same_unit=False, **settings):
    return judge_runs(*make_sides(a, b, seeds), ask(**settings), same_unit=same_unit)


def build_report(a, b, seeds=None, **settings):
    a, b = make_sides(a, b, seeds)
    question = ask(**settings)
    judgment = judge_runs(a, b, question)
    return build_file_report({"x": a, "y": b}, ["x.csv", "y.csv"], judgment, question, None, "judge x y")


@pytest.mark.parametrize(
    ("seeds", "pairing"),
    [
        ("same", "paired by 6 seeds, which both sides have"),
        (None, "unpaired: not every run has a seed"),
        (range(1, 7), "unpaired: one side alone has seeds 0, 6"),
    ],
)
def test_equal_seeds_are_paired_and_others_compared_by_welch(seeds, pairing):
    paired = seeds == "same"
    test = ttest_rel(BETTER, BASE) if paired else ttest_ind(BETTER, BASE, equal_var=False)
    interval = test.confidence_interval(0.95)
    result = decide(make_runs(BASE, "same"), make_runs(BETTER, seeds)[::-1])
    assert (result.decision.low, result.decision.high) == pytest.approx((interval.low, interval.high))
    assert (result.paired, pairing in result.pairing, result.decision.holds) == (paired, True, True)


@pytest.mark.parametrize("looks", ["once", "anytime"])
@pytest.mark.parametrize(
    ("shift", "lower_is_better", "holds"),
    [(-0.2, True, True), (0.2, True, False), (0.2, False, True), (-0.2, False, False), (-0.01, True, None),
     (0.01, False, None)],
)  # fmt: skip
def test_direction_and_margin(shift, lower_is_better, holds, looks):
    decision = decide(BASE, BASE + shift, lower_is_better=lower_is_better, looks=looks).decision
    assert (decision.holds, decision.estimate) == (holds, pytest.approx(shift))


@pytest.mark.parametrize("seeds", ["same", None])
@pytest.mark.parametrize("lower_is_better", [True, False])
def test_diverged_runs_count_against_their_side(seeds, lower_is_better):
    direction = {"seeds": seeds, "lower_is_better": lower_is_better}
    gain = -0.5 if lower_is_better else 0.5
    base = np.random.default_rng(0).normal(3, 0.01, 12)
    bad = [None] * 9 + [*base[9:] + gain]
    report = build_report(base, bad, **direction)
    [claim] = report.verdict.claims
    assert claim.basis == ("ranks" if seeds else "random pairs")
    assert claim.verdict != Verdict.SUPPORTED
    assert [arm.diverged for arm in report.files.arms] == [0, 9]
    assert len(report.failures.runs) == report.failures.counts[1].failed == 9
    assert decide(bad, base, **direction).decision.holds is not False
    assert decide([*base[:11], None], base + gain, **direction).decision.holds is True


def test_half_of_a_side_that_diverged_counts_wherever_it_is_in_the_file():
    random = np.random.default_rng(1)
    good, base = list(random.normal(2.9, 0.01, 12)), random.normal(3.0, 0.01, 12)
    for b in (good + [None] * 12, [None] * 12 + good):
        result = decide(make_runs(base, range(12)), make_runs(b, range(50, 74)))
        assert (result.is_ranked, result.decision.holds) == (True, None)
        assert 3 <= sum(np.isinf(second) for _, second in result.pairs) <= 9


def test_a_missing_interval_has_its_reason():
    assert decide([3.0, 3.0], BASE).obstacle.startswith("all values of a side are equal")
    assert decide(BASE, BASE - 0.5, "same").obstacle.startswith("all differences are equal")
    few = build_report(BASE[:3], [2.9, 2.91, 2.92], looks="anytime")
    assert few.verdict.run_warnings == ["No interval: too few runs: 4 a side may decide."]
    assert "no interval" in describe_claim(few.verdict.claims[0])


def test_a_run_counts_once_and_lost_runs_not_at_all():
    exact = BASE[:5] + 1e-9
    with pytest.raises(InvalidConfig, match=r"b:5: has the value 3\.000000001 of a:0: one run counts"):
        decide(exact, [*BASE[:5], exact[0]])
    one, again = ([replace(make_runs(BASE, name=side)[0], name="r0"), *make_runs(BETTER)] for side in "ab")
    with pytest.raises(InvalidConfig, match="has the values and the name r0 of a:0"):
        decide(one, again)
    a, b = make_sides(BASE, BASE[::-1], "same")
    files = build_report(a, [*b, ExternalRun("b:9", None, "9", "missing", (), ())]).files
    assert (files.equal_values, count_equal_values(a)) == (12, 2)
    counts = [(arm.rows_read, arm.runs_found, arm.runs, arm.missing) for arm in files.arms]
    assert counts == [(6, 6, 6, 0), (7, 7, 6, 1)]
    assert files.pairing == "paired by 6 seeds, which both sides have; 1 left out, for which a run is missing"


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (BASE, [3.0], "B: 1 finished run: a comparison takes two or more"),
        ([3.0, None], BASE, "A: 1 finished run"),
        (BASE, make_runs(BASE, steps=(50,)), "a:0: --reduce last reads step 50, and in a:0 step 100"),
        (BASE[:5], BASE[:5] / np.log(2), "side and bits"),
        (BASE[:5], np.exp(BASE[:5]), "nats on one side and perplex"),
        (BASE / 100, BASE, "fractions on one side and percent"),
    ],
)
def test_unlike_sides_are_rejected(a, b, message):
    with pytest.raises(InvalidConfig, match=message):
        decide(a, b)
    if "nats" in message or "bits" in message:
        assert decide(a, b, same_unit=True).decision.holds is False


@pytest.mark.parametrize("seeds", ["same", None])
def test_the_report_is_that_of_an_experiment_of_two_arms(seeds):
    """Claim, effect and section of files have the numbers of the decision."""
    report = build_report(BASE, BETTER, seeds, looks=(6, 12))
    decision = decide(BASE, BETTER, seeds, looks=(6, 12)).decision
    [claim], [effect] = report.verdict.claims, report.effects
    assert (claim.decision.estimate, claim.decision.low) == (decision.estimate, decision.low)
    assert (claim.arm, claim.against, claim.region) == ("y", "x", (-np.inf, -0.01))
    assert (effect.mean, len(effect.pairs)) == (decision.estimate, 6 if seeds else 0)
    assert describe_claim(claim).endswith(f"of 2, {'6 paired seeds' if seeds else '12 runs'}.")
    section = files_section.build(report, PageContext())
    rows = list_tables([section])["file_runs"].iterate_records()
    expected = zip([*BASE, *BETTER], 2 * [*range(6)] if seeds else 12 * [None], strict=True)
    assert [(row["value"], row["seed"]) for row in rows] == [*expected]
    [power] = [block.plain for block in section.blocks if isinstance(block, Text)]
    assert power.startswith(f"{report.files.required_runs_per_side} runs per arm decide the claim")
    [terms] = [dict(block.pairs) for block in section.blocks if isinstance(block, Terms)]
    assert ("gain of pairing" in terms, terms["declared"]) == (seeds == "same", "no")
    assert terms["interim analyses"] == "at 6, 12 runs per arm"


@pytest.fixture
def files(folder):
    question = Question(metric="loss", lower_is_better=True, margin=0.01, looks=(3, 6))
    write_declaration(folder / "plan.json", question, ["a.csv", "better.csv"], None)
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


@pytest.mark.usefixtures("blank_charts")
def test_other_questions_have_other_reports_whose_pages_are_rendered_on_demand(files, judge, capfd):
    words = f"a.csv better.csv {WORDS}"
    reports = [judge(words, more)[1]["report"] for more in ("", "--looks once", "--margin 0.02", "")]
    assert (len({*reports}), reports[0]) == (3, reports[3])
    folder = (files / reports[0]).parent
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    judge(words, "--page")
    page = (folder / "report.html").read_text("utf-8")
    assert "EXPLORATORY" in page
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text("utf-8") == page
    (files / "reports").rename(files / "moved")
    (files / "reports").write_text("a file, so no folder")
    main(["judge", *words.split(), "--json"])
    out, err = capfd.readouterr()
    assert ('"claim": "SUPPORTED"' in out, '"report": null' in out, "no report: " in err) == (True,) * 3
    assert (files / "reports").is_file()


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
        ("DECLARED --margin 0.02", "margin 0.02, declared 0.01"),
        ("DECLARED --looks 4", "looks 4, declared 3,6"),
        ("DECLARED --higher-is-better", "lower is better False, declared True"),
        ("DECLARED --metric accuracy --reduce best", "metric accuracy, declared loss; reduce best"),
        ("better.csv a.csv --declare plan.json", "files better.csv a.csv, declared a.csv better.csv"),
        ("a.csv b.csv --declare other.json WORDS --looks 6", "a.csv exists: other.json would come after"),
        ("x.csv y.csv --declare no/plan.json WORDS --looks 6", "--declare no/plan.json: No such file"),
        ("x.csv y.csv --declare new.json WORDS --looks once", "names the number of runs"),
        ("x.csv y.csv --declare new.json WORDS --looks 8,4", "--looks 8,4: give anytime"),
        (
            "a.csv better.csv WORDS --looks 4",
            "A has 6 runs and B 6: the interim analyses are at 4 runs per side",
        ),
        ("a.csv better.csv --batch WORDS", "--batch: add --champion and --log"),
        ("--champion a.csv better.csv WORDS", "--champion: add --log FILE"),
        ("--log log.jsonl better.csv WORDS", "--log: give either --champion FILE"),
        ("LOGGED WORDS", "--champion: name the files of the candidates"),
        ("LOGGED better.csv", "--metric is missing"),
        ("LOGGED better.csv WORDS --fdr 5", "--fdr 5: a number between 0 and 1"),
        ("LOGGED better.csv WORDS --looks 8", "--looks: has no effect with --log"),
        ("LOGGED a.csv WORDS", "a.csv: the same runs as those of the champion"),
        ("--champion a.csv --log no/log.jsonl better.csv WORDS", "no/log.jsonl: no such folder"),
    ],
)
def test_invalid_commands_are_rejected_in_one_line_and_write_nothing(files, refuse, words, message):
    names = {*files.iterdir()}
    words = words.replace("LOGGED", "--champion a.csv --log log.jsonl").replace("WORDS", WORDS)
    refuse("judge " + words.replace("DECLARED", "a.csv better.csv --declare plan.json"), message)
    assert {*files.iterdir()} == names


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


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, ""),
        ({"tokens": 200}, "tokens"),
        ({"unit": "word"}, "per word in other"),
        ({"validation": "w"}, "validated on different data"),
        ({"leakage": {"sees_future": 1, "next_token": 1}}, "other sees future tokens"),
    ],
)
def test_own_run_directories_get_the_checks_of_a_sweep(folder, judge, refuse, facts, reason):
    words = "base other --metric val/loss --lower-is-better --margin 0.01 --looks once"
    for seed in range(4):
        write_run(folder / "base", seed, 3.0)
        write_run(folder / "other", seed, 2.0 + 0.001 * seed**2, **facts)
    status, summary = judge(words)
    assert (status, summary["claim"]) == ((5, "NOT COMPARABLE") if reason else (0, "SUPPORTED"))
    assert reason in summary["sentence"]
    report = load_report(folder / summary["report"])
    assert report.budget.find_row("tokens").get_cell("other").value == facts.get("tokens", 100)
    assert (report.effects[0].mean is None, report.effects[0].unit) == (bool(reason), "nats")
    write_run(folder / "base", 9, 3.0, lr=0.2)
    refuse(f"judge {words}", "base: holds runs of several configs (optim.lr is 0.1 and 0.2)")
