"""Output of `plan` and `status`: tables, forecasts, warnings and JSON."""

import json

import pytest

from attnlab.store import run_directories
from attnlab.store.run_schema import Failure, RunResult
from attnlab.sweep import reporting
from attnlab.sweep.execute.work_folder import WorkFolder, build_work_plan
from attnlab.sweep.status import display


@pytest.fixture
def print_plan(plan_toy, tmp_path, capsys):
    """`print_plan(settings, ...)`: the output of `plan` for the toy experiment with replaced estimates."""

    def call(settings=None, **estimate):
        [plan] = plan_toy("+experiment=heads")
        changed = [run.with_changes(estimate=run.estimate.model_copy(update=estimate)) for run in plan.runs]
        plan.runs = changed
        display.show_plans("plan", [plan], tmp_path, {"slots": 2, **(settings or {})}, list)
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize(
    ("epochs", "data", "cell"),
    [(0.979, {}, "0.979"), (1800.0, {}, "1,800"), (None, {"train_tokens": 0}, "drawn"), (None, {}, "?")],
)
def test_plan_shows_the_epochs_of_each_run(print_plan, epochs, data, cell):
    head, *rows = print_plan(epochs=epochs, data=data).splitlines()[1:4]
    at = head.index("epochs") + len("epochs")
    assert {row[:at].split()[-1] for row in rows} == {cell}


def test_plan_warns_of_too_many_epochs(print_plan):
    warning = "warning: each arm read its corpus 7.1 times; beyond 4 epochs, repeated tokens are worth less"
    assert warning in print_plan(epochs=7.1)
    assert "warning" not in print_plan(epochs=4.0)


def make_model(dim, n_heads, **parametrization):
    return {
        "dim": dim,
        "attention": {"heads": {"n_heads": n_heads}},
        "parametrization": parametrization or None,
    }


@pytest.mark.parametrize(
    ("models", "counts"),
    [
        ([make_model(64, 4), make_model(256, 16, base_dim=64)], "4 to 16"),
        ([make_model(128, 8, base_dim=64), make_model(256, 16, base_dim=64)], "8 to 16"),
        ([make_model(64, 4), make_model(256, 4, base_dim=64)], None),
        ([make_model(64, 4), make_model(256, 16, base_dim=64, base_head_dim=16)], None),
        ([make_model(64, 4), make_model(256, 16)], None),
        ([make_model(128, 2), make_model(256, 4, base_dim=64)], None),
        ([{"_target_": "Recurrent"}, {}], None),
    ],
)
def test_plan_and_sweep_warn_once_of_a_head_count_that_differs_from_the_base(
    plan_toy, tmp_path, capsys, models, counts
):
    plans = [*plan_toy("+experiment=heads"), *plan_toy("+experiment=heads")]
    for plan, model in zip(plans, models, strict=True):
        plan.runs = [run.with_changes(config=run.config | {"model": model}) for run in plan.runs]
    display.show_plans("plan", plans, tmp_path, {"slots": 2}, list)
    reporting.announce_runs(plans, [], tmp_path, 1.0)
    lines = " ".join(capsys.readouterr().out.split())
    assert lines.count("set model.parametrization.base_head_dim") == (0 if counts is None else 2)
    assert counts is None or lines.count(f"have {counts} heads") == 2


@pytest.mark.parametrize(
    ("settings", "room", "message"),
    [
        ({}, 30e9, None),
        (
            {},
            15e9,
            "10.0 GB of memory, 2 at a time, but the device has only 15.0 GB (cpu): set sweep.slots=1",
        ),
        ({"slots": 1}, 15e9, None),
        (
            {"slots": 1},
            9e9,
            "10.0 GB of memory, but the device has only 9.0 GB (cpu): set sweep.halve_batch=true",
        ),
        ({}, None, None),
    ],
)
def test_plan_warns_of_runs_that_exceed_the_device_memory(print_plan, settings, room, message):
    out = print_plan(
        settings, memory_bytes=int(10e9), device_memory_bytes=None if room is None else int(room)
    )
    assert (message in out) if message else "warning" not in out
    assert "10,000 MB" in out


@pytest.fixture
def show_view(plan_toy, tmp_path, capsys):
    """`show_view(view, *overrides)`: the output of a view for the toy experiment, planned `times` times."""

    def call(view, *overrides, times=1):
        plans = [plan for _ in range(times) for plan in plan_toy("+experiment=heads", *overrides)]
        display.show_plans(view, plans, tmp_path, {"slots": 2}, list)
        return capsys.readouterr().out

    return call


def write_finished_run(run, root, seconds):
    (root / run.id).mkdir()
    run_directories.write_run_result(
        root / run.id,
        RunResult(id=run.id, status="done", seed=run.seed, config=run.config, metrics={"val/loss": 1.0},
                  estimate=run.estimate, seconds=seconds),
    )  # fmt: skip


def test_plan_and_sweep_show_that_seeds_of_the_command_line_are_anytime_valid(
    plan_toy, show_view, tmp_path, capsys
):
    line = "seed= on the command line replaces the interim analyses: looks=anytime: intervals are valid"
    assert show_view("plan", "seed=0,1,2").count(line) == 1
    for views in ((), ("seed=0,1,2", "looks=null")):
        assert "anytime" not in show_view("plan", *views)
    few = "2 seeds give no 95% interval: looks=anytime needs at least 4"
    assert few in show_view("plan", "seed=0,5")
    assert few not in show_view("plan", "seed=0,1,2,3")
    declared = show_view("plan", "looks=anytime")
    assert "\nlooks=anytime: intervals are valid" in declared
    plans = [*plan_toy("+experiment=heads", "seed=0,1,2"), *plan_toy("+experiment=heads", "seed=0,1,2")]
    reporting.announce_runs(plans, [], tmp_path, 1.0)
    assert capsys.readouterr().out.count(line) == 1, "once for all corpora"


def test_time_is_unknown_before_any_run_has_finished(show_view):
    plan = show_view("plan", "seed=0,1")
    assert "6 to train, 0 done\n0/6 runs (comparison); time left unknown\n" in plan
    assert sum("unknown  to train" in line for line in plan.splitlines()) == 6
    assert "0/6 runs (comparison); time left unknown\n6 to train\n" in show_view("status", "seed=0,1")


def test_finished_runs_give_the_time_of_their_arm_and_a_guess_for_others(plan_toy, show_view, tmp_path):
    [plan] = plan_toy("+experiment=heads", "seed=0,1")
    write_finished_run(plan.runs[0], tmp_path, 600.0)
    out = show_view("plan", "seed=0,1")
    assert "5 to train, 1 done: " in out
    assert "(~ marks estimates from the FLOPs of other runs, because no run of the arm has finished)" in out
    assert "1/6 runs (comparison); about " in show_view("status", "seed=0,1")
    for run in plan.runs[1:]:
        if run.seed == plan.runs[0].seed:
            write_finished_run(run, tmp_path, 1200.0)
    out = show_view("plan", "seed=0,1")
    assert (
        "3 to train, 3 done: 50 min of slot time\n3/6 runs (comparison); about 25 min left on 2 slots\n"
        in out
    )


def test_interim_range_ends_with_all_planned_seeds(plan_toy, show_view, tmp_path):
    overrides = ("seeds=null", "looks=[2,4]", "seed=range(4)")
    expected = "0/6 runs (interim analysis 1 of 2); up to 4 more; time left unknown\n"
    assert expected in show_view("plan", *overrides)
    [plan] = plan_toy("+experiment=heads", *overrides)
    for run in plan.runs:
        if run.seed == 0:
            write_finished_run(run, tmp_path, 600.0)
    assert (
        "3/6 runs (interim analysis 1 of 2); up to 4 more; about 15 min left, 35 min with them on 2 slots\n"
    ) in show_view("plan", *overrides)


def test_total_of_several_plans_counts_shared_runs_once(show_view):
    for view in ("plan", "status"):
        assert "total: 0/6 runs (comparison); time left unknown\n" in show_view(view, "seed=0,1", times=2)
        overrides = ("seeds=null", "looks=[2,4]", "seed=range(4)")
        total = "total: 0/6 runs (interim analysis 1 of 2); up to 4 more; time left unknown\n"
        assert total in show_view(view, *overrides, times=2)


def test_table_has_a_row_per_run_or_with_many_runs_per_arm(plan_toy, tmp_path, capsys):
    for seeds, by_arm in (("0,1", False), ("range(20)", True)):
        [plan] = plan_toy("+experiment=heads", f"seed={seeds}")
        for view in ("plan", "status"):
            display.show_plans(view, [plan], tmp_path, {"slots": 2}, list)
            lines = capsys.readouterr().out.splitlines()
            head = next(i for i, line in enumerate(lines) if line.startswith("arm "))
            last = head + 1 + (len(plan.group_runs_by_arm()) if by_arm else len(plan.all_runs))
            rows = [line.split() for line in lines[head + 1 : last]]
            if by_arm:
                labels = [f"{arm} 20 0 to 19" for arm in plan.group_runs_by_arm()]
                assert [" ".join(row[:5]) for row in rows] == labels
                assert all("20 to train" in " ".join(row) for row in rows)
            else:
                assert [row[2] for row in rows] == [run.id for run in plan.all_runs]


def test_json_has_counts_states_budgets_and_forecasts(plan_toy, tmp_path, capsys):
    [plan] = plan_toy("+experiment=heads", "seed=range(20)")
    for view in ("plan_json", "status_json"):
        display.show_plans(view, [plan], tmp_path, {"slots": 2}, list)
        [content] = json.loads(capsys.readouterr().out)
        assert content["counts"] == {"to train": len(plan.all_runs)}
        assert [run["id"] for run in content["runs"]] == [run.id for run in plan.all_runs]
        assert {run["axes"]["heads"] for run in content["runs"]} >= {"two"}
        assert all(run["budget"]["parameters"] for run in content["runs"])
        assert all(("forecast" in run) == (view == "plan_json") for run in content["runs"])
        assert isinstance(content["notes"], list)


def test_table_with_a_row_per_arm_lists_failed_runs(plan_toy, tmp_path, capsys):
    [plan] = plan_toy("+experiment=heads", "seed=range(20)")
    run = plan.runs[7]
    record = RunResult(
        id=run.id, status="crashed", seed=run.seed, config=run.config, failure=Failure(message="it broke")
    )
    (tmp_path / run.id).mkdir()
    run_directories.write_run_result(tmp_path / run.id, record)
    display.show_plans("status", [plan], tmp_path, {"slots": 2}, list)
    out = capsys.readouterr().out
    assert f"{run.arm} seed={run.seed} {run.id}: crashed  it broke" in out
    assert "19 to train, 1 crashed" in out or "1 crashed, 19 to train" in out
    assert out.index("1/60 runs, 1 failed (comparison)") < out.index("arm "), "the summary is on top"


@pytest.mark.parametrize(
    ("settings", "n_workers", "words"),
    [
        ({"slots": 1}, 0, "1 slot"),
        ({"slots": 1}, 1, "3 slots"),
        ({"slots": 2, "array_parallelism": 256}, 0, "2 slots"),
        ({"array_parallelism": 256}, 0, "256 slots"),
    ],
)
def test_time_is_that_on_the_slots_of_workers_of_slurm_or_of_this_machine(
    plan_toy, tmp_path, capsys, settings, n_workers, words
):
    [plan] = plan_toy("+experiment=heads", "seed=0,1")
    write_finished_run(plan.runs[0], tmp_path, 240.0)
    folder = WorkFolder(tmp_path, build_work_plan([plan], "command"))
    folder.join()
    for _ in range(n_workers):
        folder.write_state("cpu", 3, [])
    display.show_plans("status", [plan], tmp_path, settings, list)
    assert f" left on {words}\n" in capsys.readouterr().out


@pytest.mark.rare
def test_report_of_a_running_sweep_shows_that_it_is_interim(attnlab):
    now = ("+experiment=heads", "seed=0,1", "++sweep.show=report")
    status, _, errors = attnlab(*now)
    assert (status, "no run of the experiment has ended yet" in errors) == (2, True)
    assert attnlab("+experiment=heads", "seed=0")[0] == 0
    attempts = attnlab.load_attempts()
    status, out, errors = attnlab(*now)
    assert status == 0, errors
    assert "report: " in out
    assert attnlab.load_attempts() == attempts
    reports = {path: json.loads(path.read_text()) for path in attnlab.folder.glob("reports/*/report.json")}
    [page] = [path for path, report in reports.items() if report["verdict"]["planned"] > len(attempts)]
    verdict = reports[page]["verdict"]
    notice = (
        f"Preliminary report, verdicts may change. {len(attempts)}/{verdict['planned']} runs (comparison)."
    )
    assert verdict["run_warnings"][0].startswith(notice)
    assert notice in page.with_name("report.html").read_text()


def test_plan_shows_that_few_steps_leave_the_arms_untrained(show_view, monkeypatch):
    assert "UNTRAINED" not in show_view("plan", "seed=0,1")
    monkeypatch.setattr("attnlab.sweep.plan.plan.MIN_TRAINED_STEPS", 10_000)
    line = "no arm trains for 10000 steps: the report will call them UNTRAINED and compare no losses"
    assert line in show_view("plan", "seed=0,1")
