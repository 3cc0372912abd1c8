"""What `plan` prints of runs: their epochs, and warnings before anybody pays for them."""

import json

import pytest

from attnlab.store import runs as store
from attnlab.store.schema import Failure, RunRecord
from attnlab.sweep.status import show


@pytest.fixture
def printed(planned, tmp_path, capsys):
    """`printed(settings, ...)`: the toy's plan, with estimates replaced."""

    def call(settings=None, **estimate):
        [plan] = planned("+experiment=heads")
        changed = [run.but(estimate=run.estimate.model_copy(update=estimate)) for run in plan.runs]
        plan.runs = changed
        show.show("plan", [plan], tmp_path, {"slots": 2, **(settings or {})}, list)
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize(
    ("epochs", "data", "cell"),
    [(0.979, {}, "0.979"), (1800.0, {}, "1,800"), (None, {"train_tokens": 0}, "drawn"), (None, {}, "?")],
)
def test_each_run_says_how_often_it_reads_its_text(printed, epochs, data, cell):
    head, *rows = printed(epochs=epochs, data=data).splitlines()[1:4]
    at = head.index("epochs") + len("epochs")
    assert {row[:at].split()[-1] for row in rows} == {cell}


def test_reading_a_text_too_often_is_warned_of(printed):
    said = "warning: each arm read its text 7.1 times; beyond 4 repetitions are worth less"
    assert said in printed(epochs=7.1)
    assert "warning" not in printed(epochs=4.0)


@pytest.mark.parametrize(
    ("settings", "room", "told"),
    [
        ({}, 30e9, None),
        (
            {},
            15e9,
            "10.0 GB of memory, 2 at a time, and there are 15.0 GB (cpu): set sweep.slots=1, sweep.halve",
        ),
        ({"slots": 1}, 15e9, None),
        ({"slots": 1}, 9e9, "10.0 GB of memory, and there are 9.0 GB (cpu): set sweep.halve_batch=true"),
        ({}, None, None),
    ],
)
def test_runs_that_do_not_fit_are_warned_of(printed, settings, room, told):
    out = printed(settings, memory_bytes=int(10e9), room_bytes=None if room is None else int(room))
    assert (told in out) if told else "warning" not in out
    assert "10,000 MB" in out


@pytest.fixture
def shown(planned, tmp_path, capsys):
    """`shown(kind, *words)`: the output for the toy's plan."""

    def call(kind, *words, times=1):
        plans = [plan for _ in range(times) for plan in planned("+experiment=heads", *words)]
        show.show(kind, plans, tmp_path, {"slots": 2}, list)
        return capsys.readouterr().out

    return call


def finish(run, root, seconds):
    (root / run.id).mkdir()
    store.write_record(
        root / run.id,
        RunRecord(id=run.id, status="done", seed=run.seed, config=run.config, metrics={"val/loss": 1.0},
                  estimate=run.estimate, seconds=seconds),
    )  # fmt: skip


def test_the_time_is_unknown_until_something_has_run(shown):
    plan = shown("plan", "seed=0,1")
    assert "6 to train, 0 done: time unknown\n" in plan
    assert sum("unknown  to train" in line for line in plan.splitlines()) == 6
    assert "of the work, time left unknown\n" in shown("status", "seed=0,1")


def test_finished_runs_tell_the_time_of_their_arm_and_a_guess_of_the_others(planned, shown, tmp_path):
    [plan] = planned("+experiment=heads", "seed=0,1")
    finish(plan.runs[0], tmp_path, 600.0)
    out = shown("plan", "seed=0,1")
    assert "5 to train, 1 done: about " in out
    assert "(~ is a guess from the FLOPs of other runs: none of the arm has finished)" in out
    assert "of one slot left" in shown("status", "seed=0,1")
    for run in plan.runs[1:]:
        if run.seed == plan.runs[0].seed:
            finish(run, tmp_path, 1200.0)
    out = shown("plan", "seed=0,1")
    assert "3 to train, 3 done: about 25 min on 2 slots, 50 min in all\n" in out


def test_the_range_of_the_interim_analyses_goes_to_all_planned_seeds(planned, shown, tmp_path):
    words = ("seeds=null", "looks=[2,4]", "seed=range(4)")
    assert (
        "interim analyses at 2, 4 seeds: 6 more runs, time unknown (next interim analysis) "
        "... 10 more runs, time unknown (all planned seeds)\n"
    ) in shown("plan", *words)
    [plan] = planned("+experiment=heads", *words)
    for run in plan.runs:
        if run.seed == 0:
            finish(run, tmp_path, 600.0)
    assert (
        "3 more runs, about 15 min on 2 slots (next interim analysis) "
        "... 7 more runs, about 35 min on 2 slots (all planned seeds)\n"
    ) in shown("plan", *words)


def test_several_plans_are_told_together_and_a_shared_run_counts_once(shown):
    assert "together: 6 to train by now, time unknown\n" in shown("plan", "seed=0,1", times=2)
    words = ("seeds=null", "looks=[2,4]", "seed=range(4)")
    assert (
        "together: 6 to train by now, time unknown ... 10 with all planned seeds, time unknown\n"
    ) in shown("plan", *words, times=2)


def test_many_runs_are_a_row_per_arm_and_few_a_row_each(planned, tmp_path, capsys):
    for seeds, by_arm in (("0,1", False), ("range(20)", True)):
        [plan] = planned("+experiment=heads", f"seed={seeds}")
        for kind in ("plan", "status"):
            show.show(kind, [plan], tmp_path, {"slots": 2}, list)
            lines = capsys.readouterr().out.splitlines()
            head = next(i for i, line in enumerate(lines) if line.startswith("arm "))
            last = head + 1 + (len(plan.arms()) if by_arm else len(plan.all_runs))
            rows = [line.split() for line in lines[head + 1 : last]]
            if by_arm:
                assert [row[:3] for row in rows] == [[arm, "20", "0-19"] for arm in plan.arms()]
                assert all("20 to train" in " ".join(row) for row in rows)
            else:
                assert [row[2] for row in rows] == [run.id for run in plan.all_runs]


def test_a_program_reads_all_of_it_as_json(planned, tmp_path, capsys):
    [plan] = planned("+experiment=heads", "seed=range(20)")
    for kind in ("plan_json", "status_json"):
        show.show(kind, [plan], tmp_path, {"slots": 2}, list)
        [told] = json.loads(capsys.readouterr().out)
        assert told["counts"] == {"to train": len(plan.all_runs)}
        assert [run["id"] for run in told["runs"]] == [run.id for run in plan.all_runs]
        assert {run["axes"]["heads"] for run in told["runs"]} >= {"two"}
        assert all(run["budget"]["parameters"] for run in told["runs"])
        assert all(("forecast" in run) == (kind == "plan_json") for run in told["runs"])


def test_a_row_per_arm_names_what_failed(planned, tmp_path, capsys):
    [plan] = planned("+experiment=heads", "seed=range(20)")
    run = plan.runs[7]
    record = RunRecord(
        id=run.id, status="crashed", seed=run.seed, config=run.config, failure=Failure(message="it broke")
    )
    (tmp_path / run.id).mkdir()
    store.write_record(tmp_path / run.id, record)
    show.show("status", [plan], tmp_path, {"slots": 2}, list)
    out = capsys.readouterr().out
    assert f"{run.arm} seed={run.seed} {run.id}: crashed  it broke" in out
    assert "19 to train, 1 crashed" in out or "1 crashed, 19 to train" in out
    assert out.index("of the work") < out.index("arm "), "the summary is on top"


@pytest.mark.rare
def test_a_report_may_be_written_before_all_runs_have_ended_and_says_so(attnlab):
    now = ("+experiment=heads", "seed=0,1", "++sweep.show=report")
    status, _, errors = attnlab(*now)
    assert (status, "no run of it has ended yet" in errors) == (2, True)
    assert attnlab("+experiment=heads", "seed=0")[0] == 0
    trained = attnlab.trained()
    status, out, errors = attnlab(*now)
    assert status == 0, errors
    assert "report: " in out
    assert attnlab.trained() == trained
    reports = {path: json.loads(path.read_text()) for path in attnlab.folder.glob("reports/*/report.json")}
    [page] = [path for path, told in reports.items() if told["verdict"]["planned"] > len(trained)]
    verdict = reports[page]["verdict"]
    said = f"Written while runs may be under way: {len(trained)} of {verdict['planned']} are finished."
    assert verdict["unlike"][0].startswith(said)
    assert said in page.with_name("report.html").read_text()
