"""What `plan` prints of runs: their epochs, and warnings before anybody pays for them."""

import pytest

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
