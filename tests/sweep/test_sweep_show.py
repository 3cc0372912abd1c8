"""What `plan` prints of runs: their epochs, and warnings before anybody pays for them."""

import json

import pytest

from attnlab.store import runs as store
from attnlab.store.schema import Failure, RunRecord
from attnlab.sweep.status import show


@pytest.fixture
def printed(planned, tmp_path, capsys, monkeypatch):
    """`printed(settings, ...)`: the toy's plan, with estimates replaced."""
    monkeypatch.setattr(show, "trials", lambda runs, context, together: {})

    def call(settings=None, **estimate):
        [plan] = planned("+experiment=heads")
        changed = [run.but(estimate=run.estimate.model_copy(update=estimate)) for run in plan.runs]
        plan.runs = changed
        show.show("plan", [plan], tmp_path, {"slots": 2, **(settings or {})}, list, None)
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


@pytest.mark.parametrize(
    ("load", "told"), [(0.1, ""), (6.0, ", and longer beside other work (the load is 6 on 4 cores now)")]
)
def test_other_work_of_the_machine_is_told_of(monkeypatch, load, told):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 9.0, 9.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert show._beside(2).startswith(told)
    assert bool(show._beside(2)) == bool(told)


def test_many_runs_are_a_row_per_arm_and_few_a_row_each(planned, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(show, "trials", lambda runs, context, together: {})
    for seeds, by_arm in (("0,1", False), ("range(20)", True)):
        [plan] = planned("+experiment=heads", f"seed={seeds}")
        for kind in ("plan", "status"):
            show.show(kind, [plan], tmp_path, {"slots": 2}, list, None)
            lines = capsys.readouterr().out.splitlines()
            head = next(i for i, line in enumerate(lines) if line.startswith("arm "))
            last = head + 1 + (len(plan.arms()) if by_arm else len(plan.all_runs))
            rows = [line.split() for line in lines[head + 1 : last]]
            if by_arm:
                assert [row[:3] for row in rows] == [[arm, "20", "0-19"] for arm in plan.arms()]
                assert all("20 to train" in " ".join(row) for row in rows)
            else:
                assert [row[2] for row in rows] == [run.id for run in plan.all_runs]


def test_a_program_reads_all_of_it_as_json(planned, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(show, "trials", lambda runs, context, together: {})
    [plan] = planned("+experiment=heads", "seed=range(20)")
    for kind in ("plan_json", "status_json"):
        show.show(kind, [plan], tmp_path, {"slots": 2}, list, None)
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
    show.show("status", [plan], tmp_path, {"slots": 2}, list, None)
    out = capsys.readouterr().out
    assert f"{run.arm} seed={run.seed} {run.id}: crashed  it broke" in out
    assert "19 to train, 1 crashed" in out or "1 crashed, 19 to train" in out
    assert out.index("of the work") < out.index("arm "), "the summary is on top"


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
