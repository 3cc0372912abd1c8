"""A sweep preregisters its experiment before the comparison, and its report cites the preregistration."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_sweep_experiment_validation import VALID
from toys import TOY

from attnlab.cli.verbs import compare
from attnlab.errors import InvalidConfig
from attnlab.report.pages import report_files
from attnlab.report.schema import load_report
from attnlab.store import file_names, fingerprint, run_directories
from attnlab.store.guards import preregistrations
from attnlab.store.run_schema import RunResult
from attnlab.sweep import engine, reporting
from attnlab.sweep.plan.plan import Plan

EDITS = [("margin: 0.5", "margin: 0.6"), ("seeds: [0]", "seeds: [0, 1]"), ("old: 0.5}", "old: 0.6}")]
PLANS: dict[tuple[bool, bool], Plan] = {}
TUNE = "tune={lr:[0.2,0.4],seeds:[7,8,9],extend:0}"


@pytest.fixture
def report_plan(monkeypatch, tmp_path):
    """`report_plan(plan)`: preregister a plan, finish all its runs and return its report."""
    documents = []
    monkeypatch.setattr(
        report_files, "write_report", lambda _folder, document, _runs: documents.append(document)
    )

    def call(plan):
        root = tmp_path / "runs"
        entry = reporting.preregister_plan(plan, root, ["+experiment=mine"])
        for run in plan.runs:
            write_finished_run(root, run)
        reporting.publish_report(
            reporting.assemble_report(plan, root, None, [], entry), root, tmp_path / "reports"
        )
        return documents[-1]

    return call


def make_result(run):
    metrics = {"val/loss": 2.0 + run.seed, "train/loss": 1.0}
    return RunResult(id=run.id, status="done", seed=run.seed, config=run.config, metrics=metrics)


def write_finished_run(root, run):
    run_directories.write_run_config(root, run)
    run_directories.write_run_result(root / run.id, make_result(run))


def write_experiment_file(folder, name, text):
    """Write an experiment file into a new search path, since files of known search paths are cached."""
    search_path = Path(tempfile.mkdtemp(dir=folder))
    (search_path / "experiment").mkdir()
    (search_path / "experiment" / f"{name}.yaml").write_text(text)
    return search_path


@pytest.fixture
def plan_own_experiment(plan_toy, tmp_path):
    """`plan_own_experiment(edited, tracked)`: the plan of a user's experiment file, cached for all tests.

    `edited` changes seeds, margin and a claim in the file; `tracked` commits it to a git repository.
    """

    def call(edited=False, tracked=False):
        if (edited, tracked) not in PLANS:
            text = VALID
            for old, new in EDITS if edited else ():
                assert old in text
                text = text.replace(old, new, 1)
            search_path = write_experiment_file(tmp_path, "mine", text)
            git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
            for arguments in (
                (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "edited"]) if tracked else ()
            ):
                subprocess.run([*git, *arguments], cwd=search_path, check=True)
            [PLANS[edited, tracked]] = plan_toy(
                f"hydra.searchpath=['file://{search_path}']", "+experiment=mine"
            )
        return PLANS[edited, tracked]

    return call


@pytest.fixture
def plan_comparison(plan_toy, tmp_path):
    """`plan_comparison(...)`: the plan of `compare "heads=two" "heads=four" ...`."""

    def call(*arguments):
        experiment, overrides = compare.build_experiment(
            [["heads=two"], ["heads=four"]], arguments, [TOY / "conf"]
        )
        search_path = write_experiment_file(
            tmp_path, experiment["name"], compare.format_experiment_yaml(experiment)
        )
        line = (f"+experiment={experiment['name']}", *overrides, "++sweep.command=compare")
        [plan] = plan_toy(f"hydra.searchpath=['file://{search_path}']", *line)
        return plan

    return call


@pytest.mark.parametrize("tracked", [True, False])
def test_edit_after_results_makes_the_report_exploratory(plan_own_experiment, report_plan, tracked):
    assert not report_plan(plan_own_experiment()).verdict.exploratory
    report = report_plan(plan_own_experiment(edited=True, tracked=tracked))
    [line] = report.verdict.deviations
    assert "after 2 pairs of results were known under the preregistration of" in line
    for change in (
        "margin: first 0.5, now 0.6",
        "seeds: first 0, now 0, 1",
        "claims: first one against two, val/loss: difference below 0.5, "
        "now one against two, val/loss: difference below 0.6",
    ):
        assert change in line
    assert report.verdict.exploratory
    assert all(claim.exploratory for claim in report.verdict.claims)


def test_edit_before_any_result_is_no_deviation(plan_own_experiment, report_plan, tmp_path):
    reporting.preregister_plan(plan_own_experiment(), tmp_path / "runs", [])
    report = report_plan(plan_own_experiment(edited=True))
    assert not report.verdict.exploratory
    assert (report.preregistration.known_pairs, report.preregistration.pairs) == (0, 4)


@pytest.mark.parametrize("change", ["size=M", "seed=11,12,13,14,15,16,17,18", "model.width=20"])
@pytest.mark.parametrize("known", ["nothing", "runs", "other terms"])
def test_change_by_the_command_is_another_test_unless_its_results_were_known(
    plan_toy, report_plan, tmp_path, change, known
):
    words = ("+experiment=heads", "arms=[two,four]", change)
    [plan] = plan_toy(*words)
    if known == "runs":
        for run in plan.runs:
            write_finished_run(tmp_path / "runs", run)
    elif known == "other terms":
        [other] = plan_toy(*words, "margin=0.7")
        assert not report_plan(other).verdict.exploratory
    report = report_plan(plan)
    pairs = 0 if known == "nothing" else len(plan.experiment.seeds)
    assert report.preregistration.known_pairs == pairs
    assert report.verdict.exploratory == bool(pairs)
    assert {claim.exploratory for claim in report.verdict.claims} == {bool(pairs)}
    assert any("so this is another test of the claims" in line for line in report.warnings) == (not pairs)
    if pairs:
        assert report.verdict.deviations[0].startswith(
            f"the command changed the experiment, when {pairs} pairs of results were known: "
        )
        assert change.removeprefix("seed=").split(",")[0] in report.verdict.deviations[0]
    assert report_plan(plan).verdict.exploratory == bool(pairs), "its own results do not matter"


def test_compare_stays_confirmatory_with_more_seeds_but_not_with_another_margin(
    plan_comparison, report_plan, tmp_path
):
    for seeds in ("seed=0,1,2", "seed=range(8)"):
        report = report_plan(plan_comparison(seeds))
        assert not report.verdict.exploratory
        assert report.experiment.looks == "anytime"
    [entry] = preregistrations.list_preregistrations(tmp_path / "runs")
    log = (tmp_path / "runs" / file_names.PREREGISTRATION_LOG).read_text().splitlines()
    assert report.preregistration == entry
    assert report.preregistration.to_dict() == json.loads(log[0])
    assert not [run.id for run in report.runs if run.id in log[0]], "`clean` would keep these runs"
    report = report_plan(plan_comparison("seed=range(8)", "margin=0.04"))
    assert "after 8 pairs of results were known" in report.verdict.deviations[0]
    assert "margin: first 5 % of training, now 0.04" in report.verdict.deviations[0]


def test_overrides_of_the_first_comparison_are_preregistered_and_other_ones_deviate(
    plan_comparison, report_plan
):
    first = plan_comparison("seed=0,1", "margin=0.04", "trainer.max_steps=7")
    assert (first.changed, first.experiment.overrides) == ((), ["trainer.max_steps=7"])
    assert {run.config["trainer"]["max_steps"] for run in first.runs} == {7}
    report = report_plan(first)
    assert not report.verdict.exploratory
    assert not any(claim.exploratory for claim in report.verdict.claims)
    first_words = ["seed=0,1", "margin=0.04", "trainer.max_steps=7"]
    for later, change in (
        (["seed=0,1", "margin=0.05", "trainer.max_steps=7"], "margin: first 0.04, now 0.05"),
        (["seed=0,1", "margin=0.04", "trainer.max_steps=9"], "arms four, two: changed training config"),
        ([*first_words, "metric=train/loss"], "metric: first val/loss, now train/loss"),
        ([*first_words, "looks=null"], "looks: first anytime, now once, after all"),
    ):
        report = report_plan(plan_comparison(*later))
        assert report.verdict.exploratory
        assert change in report.verdict.deviations[0]
    assert not report_plan(plan_comparison(*first_words)).verdict.exploratory


def test_written_file_of_a_comparison_has_its_runs_and_preregistration(
    plan_comparison, plan_toy, report_plan, tmp_path
):
    words = ["seed=0,1", "margin=0.04", "model.width=12", "metrics=[train/loss]"]
    inline = plan_comparison(*words)
    first = report_plan(inline)
    experiment, remaining = compare.build_experiment([["heads=two"], ["heads=four"]], words, [TOY / "conf"])
    assert remaining == []
    file = compare.write_experiment_file(tmp_path, experiment)
    assert file.name == f"{inline.title}.yaml"
    search_path = write_experiment_file(tmp_path, inline.title, file.read_text())
    [plan] = plan_toy(f"hydra.searchpath=['file://{search_path}']", f"+experiment={inline.title}")
    assert [run.id for run in plan.runs] == [run.id for run in inline.runs]
    assert report_plan(plan).preregistration == first.preregistration


def test_deviations_and_broken_log_lines_are_printed_before_training(
    plan_own_experiment, report_plan, tmp_path, capsys
):
    report_plan(plan_own_experiment())
    with (tmp_path / "runs" / file_names.PREREGISTRATION_LOG).open("a") as file:
        file.write("{\n")
    capsys.readouterr()
    reporting.preregister_plan(plan_own_experiment(edited=True), tmp_path / "runs", [])
    out, err = capsys.readouterr()
    assert out.startswith("mine is EXPLORATORY: deviation of 20")
    assert err.rstrip().endswith("declarations.jsonl: invalid lines ignored: 4")


def test_config_digest_is_independent_of_seeds_and_code(plan_toy, monkeypatch):
    overrides = ("arms=[two,four,seeded,child]", "claims=[]")
    [plan] = plan_toy("+experiment=heads", *overrides, "seed=1,2")
    [seeds] = plan_toy("+experiment=heads", *overrides, "seed=5,6")
    assert seeds.config_digests == plan.config_digests
    assert len(set(plan.config_digests.values())) == len(plan.config_digests) == 4
    [narrow] = plan_toy("+experiment=heads", *overrides, "seed=1,2", "arm_overrides.four=['heads=one']")
    assert {arm for arm in plan.config_digests if narrow.config_digests[arm] != plan.config_digests[arm]} == {
        "four"
    }
    monkeypatch.setattr(fingerprint, "hash_run_source", lambda *_: {"attnlab.model": "another version"})
    [other] = plan_toy("+experiment=heads", *overrides, "seed=1,2")
    assert not {run.id for run in other.runs} & {run.id for run in plan.runs}
    assert other.config_digests == plan.config_digests


def test_learning_rates_tuned_later_are_no_deviation(plan_toy, tmp_path):
    root = tmp_path / "runs"
    grid, arms = {}, {}
    while new := [
        run
        for run in plan_toy("+experiment=heads", TUNE, "match=none", lookup=grid.get)[0].tuning_runs
        if run.id not in grid
    ]:
        grid |= {run.id: make_result(run) for run in new}
        arms |= {run.id: run.arm for run in new}
    part = {id: record for id, record in grid.items() if not arms[id].startswith("one")}
    for records, unknown in ((part, ["one"]), (grid, [])):
        [plan] = plan_toy("+experiment=heads", TUNE, "match=none", lookup=records.get)
        entry = reporting.preregister_plan(plan, root, [])
        assert [arm for arm, recipe in entry.content.recipes.items() if recipe is None] == unknown
        for run in plan.runs:
            if run.arm not in unknown:
                write_finished_run(root, run)
    assert len(preregistrations.list_preregistrations(root)) == 2
    assert entry.known_pairs == 2, "two and four, at both seeds"
    assert not entry.deviations


@pytest.fixture
def sweep(plan_own_experiment, monkeypatch, tmp_path):
    """Create a sweep of one plan that trains nothing.

    Returns it with the list of its steps, each with the length of the preregistration log at that time.
    """
    log, order = tmp_path / "runs" / file_names.PREREGISTRATION_LOG, []

    def record_call(name, answer=None):
        def call(*_, **__):
            order.append((name, len(log.read_text().splitlines()) if log.is_file() else 0))
            return answer

        return call

    plan = plan_own_experiment()
    monkeypatch.setattr(engine._Sweep, "build_plans", lambda _self: [plan])
    monkeypatch.setattr(
        engine._Sweep, "run_tuning", lambda _self, plans: (record_call("tuned")(), (plans, 0))[1]
    )
    monkeypatch.setattr(engine._Sweep, "launch_runs", record_call("trained", 0))
    monkeypatch.setattr(engine._Sweep, "time_arms", record_call("timed"))
    monkeypatch.setattr(reporting, "assemble_report", record_call("report"))
    monkeypatch.setattr(reporting, "combine_reports", lambda *_: [])
    monkeypatch.setattr(reporting, "publish_report", lambda *_: None)
    return engine._Sweep(
        [], None, None, {}, {"mode": "none"}, tmp_path / "runs", tmp_path / "reports", None, None
    ), order  # fmt: skip


def test_experiment_is_preregistered_once_between_tuning_and_comparison(sweep):
    command, order = sweep
    command.run()
    assert order == [("tuned", 0), ("trained", 2), ("timed", 2), ("report", 2)]


def test_sweep_interrupted_during_tuning_preregisters_before_its_report(sweep, monkeypatch):
    command, order = sweep

    def raise_interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._Sweep, "run_tuning", raise_interrupt)
    assert command.run() == engine.INTERRUPTED
    assert order == [("report", 2)]


@pytest.mark.parametrize(
    ("gain_per_doubling", "n_compared", "status"), [(0.25, 6, 0), (-0.25, 0, engine.FAILED)]
)
def test_compute_calibration_is_trained_before_preregistration_and_comparison(
    sweep, plan_toy, monkeypatch, tmp_path, gain_per_doubling, n_compared, status
):
    [plan] = plan_toy(
        "+experiment=heads", "compute_calibration={seeds:[200,201,202]}", "margin={training:5%}"
    )
    (command, _), root, order = sweep, tmp_path / "runs", []

    def train_toys(_self, todo, _plans):
        order.append(
            (len(todo), {run.seed >= 200 for run in todo}, bool(preregistrations.list_preregistrations(root)))
        )
        for run in todo:
            gain = gain_per_doubling * (1 + run.seed % 7 / 100) if "twice" in run.arm else 0
            run_directories.write_run_config(root, run)
            loss = {"val/loss": 2 + run.seed - gain}
            run_directories.write_run_result(
                root / run.id, make_result(run).model_copy(update={"metrics": loss})
            )
        return 0

    monkeypatch.setattr(engine._Sweep, "build_plans", lambda _self: [plan])
    monkeypatch.setattr(engine._Sweep, "launch_runs", train_toys)
    assert command.run() == status
    assert order == [(6, {True}, False), (n_compared, {False} if n_compared else set(), True)]
    [entry] = preregistrations.list_preregistrations(root)
    assert (entry.content.nats["5 % of training"] is not None) == bool(n_compared)


def test_unwritable_log_prevents_the_sweep(sweep, tmp_path):
    command, order = sweep
    (tmp_path / "runs" / file_names.PREREGISTRATION_LOG).mkdir(parents=True)
    with pytest.raises(InvalidConfig, match="the preregistration cannot be written"):
        command.run()
    assert not order
    assert not list((tmp_path / "runs").glob("users/*"))


def test_command_without_an_experiment_preregisters_nothing(sweep, plan_toy, monkeypatch, tmp_path):
    command, order = sweep
    plans = plan_toy("heads=four")
    monkeypatch.setattr(engine._Sweep, "build_plans", lambda _self: plans)
    command.run()
    assert order == [("tuned", 0), ("trained", 0)]
    assert not (tmp_path / "runs" / file_names.PREREGISTRATION_LOG).exists()


@pytest.mark.rare
def test_report_of_a_comparison_cites_its_preregistration(attnlab):
    def command(*arguments):
        line = [sys.executable, "-m", "attnlab", "compare", "heads=two", "heads=four", *arguments]
        line += ["--config-path", str(TOY / "conf")]
        result = subprocess.run(
            line, cwd=attnlab.folder, env=attnlab.environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        page = attnlab.folder / result.stdout.splitlines()[0].removeprefix("report: ")
        name = page.parent.name
        assert (page.parent / f"{name}.yaml").is_file()
        return load_report(page.parent / "report.json")

    reports = [command("seed=0,1,2"), command("seed=range(5)"), command("seed=range(5)", "margin=0.04")]
    assert [report.verdict.exploratory for report in reports] == [False, False, True]
    assert reports[0].experiment.name == reports[1].experiment.name == "two_vs_four"
    name = reports[2].experiment.name
    assert re.fullmatch("two_vs_four_[0-9a-f]{8}", name), "the first report is not replaced"
    entries = preregistrations.list_preregistrations(attnlab.folder / "runs")
    assert [reports[0].preregistration, reports[2].preregistration] == entries
    assert reports[1].preregistration == entries[0]
    page = (attnlab.folder / "reports" / name / "report.md").read_text()
    assert f"entry {entries[1].hash[:16]}" in page


@pytest.mark.rare
def test_unwritable_log_is_a_one_line_error_with_status_2(attnlab):
    (attnlab.folder / "runs" / file_names.PREREGISTRATION_LOG).mkdir(parents=True)
    status, _, err = attnlab("+experiment=heads")
    assert status == 2
    assert err.startswith("attnlab: runs/declarations.jsonl: ")
    assert err.count("\n") == 1
    assert not attnlab.load_attempts()
