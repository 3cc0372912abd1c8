"""Run directories from an untrusted source: a command uses only the configs that it composed."""

import io
import json
import sys

import pytest
from stored_runs import make_spec, write_spec

from attnlab.errors import InvalidConfig
from attnlab.store.guards import digests, trust
from attnlab.sweep import arm_timing
from attnlab.sweep.execute import process_control, worker
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress

LINE = ("+experiment=heads", "arms=[two,one]", "claims=[]", "match=none", "seed=0")
HARMFUL_MODULE = "import pathlib\npathlib.Path('harmed').touch()\n"


def list_run_files(attnlab, name):
    return sorted(attnlab.folder.glob(f"runs/*/{name}"))


def edit_config(path, **config):
    content = json.loads(path.read_text())
    for key, value in config.items():
        content["config"][key] = value
    if content.get("seal"):  # an attacker can compute it as well
        content["seal"] = digests.compute_seal(content)
    path.write_text(json.dumps(content))


@pytest.mark.rare
def test_foreign_run_config_under_a_known_id_is_not_trained(attnlab):
    assert attnlab(*LINE)[0] == 0
    (attnlab.folder / "harmful.py").write_text(HARMFUL_MODULE)
    for spec in list_run_files(attnlab, "spec.json"):
        edit_config(spec, sweep={"train": "harmful"}, seed=7)
    for record in list_run_files(attnlab, "run.json"):
        record.unlink()
    status, out, err = attnlab(*LINE)
    assert status == 0, out + err
    assert not (attnlab.folder / "harmed").exists()
    assert [seed for _, seed, *_ in attnlab.load_attempts()] == ["0"] * 4


@pytest.mark.rare
def test_result_with_another_config_is_rejected_before_training(attnlab):
    assert attnlab(*LINE)[0] == 0
    first = list_run_files(attnlab, "run.json")[0]
    edit_config(first, model=json.loads(first.read_text())["config"]["model"] | {"width": 99})
    status, _, err = attnlab(*LINE)
    assert (status, err.count("\n")) == (2, 1), err
    assert f"differs from the config of run {first.parent.name}" in err
    assert str(first.relative_to(attnlab.folder)) in err
    assert len(attnlab.load_attempts()) == 2


@pytest.mark.rare
def test_edited_config_of_a_finished_run_is_written_again_with_its_provenance(attnlab):
    assert attnlab(*LINE)[0] == 0
    first = list_run_files(attnlab, "spec.json")[0]
    planned = json.loads(first.read_text())
    edit_config(first, model=planned["config"]["model"] | {"width": 99})
    status, out, _ = attnlab(*LINE)
    assert status == 0
    assert f"{first.relative_to(attnlab.folder)} was edited: model.width is 99, its run was planned" in out
    assert json.loads(first.read_text()) == planned
    assert len(attnlab.load_attempts()) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"seed": 7},
            "was edited: seed is 7, its run was planned with 3: run the experiment",
        ),
        ({"sweep": {"train": "harmful"}}, "sweep.train = harmful: not trusted"),
        ({"logger": {"mine": {"_target_": "harmful.Logger"}}}, "logger.mine._target_ = harmful.Logger: not"),
        (
            {"data": {"path": {"_target_": "os.mkdir", "path": "harmed"}}},
            "data.path._target_ = os.mkdir: not",
        ),
        ({"trainer": {"profiler": {"_target_": "os.system"}}}, "trainer.profiler._target_ = os.system: not"),
        ({"data": {"path": {"_target_": "attnlab.data.text.os.system"}}}, "which refers to posix.system"),
    ],
)
def test_worker_builds_nothing_of_a_config_that_its_command_did_not_plan(
    tmp_path, monkeypatch, capsys, changes, message
):
    (tmp_path / "harmful.py").write_text(HARMFUL_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = {"seed": 3, "sweep": {"train": "toy_trainer"}, "data": {}, "trainer": {}}
    folder = write_spec(tmp_path / "runs", make_spec(config))
    trust.declare_names([config])
    edit_config(folder / "spec.json", **changes)
    for line in ([str(folder)], ["--no-wait", str(folder)]):
        assert worker.main(line) == process_control.NOT_RECORDED
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert f"{folder / 'spec.json'}" in err
        assert message in err
    assert not (tmp_path / "harmed").exists()
    assert not (folder / "run.json").exists()
    assert "harmful" not in sys.modules


def test_run_with_an_untrusted_target_is_not_timed(tmp_path):
    harm = {"_target_": "os.mkdir", "path": str(tmp_path / "harmed")}
    folder = write_spec(tmp_path, make_spec({"model": harm}))
    line = [str(tmp_path / "times.json"), json.dumps({"one": str(folder)})]
    with pytest.raises(InvalidConfig, match=r"spec.json: model._target_ = os.mkdir"):
        arm_timing.main(line)
    assert not (tmp_path / "harmed").exists()


def test_pool_prints_why_a_worker_refuses_a_run(tmp_path):
    config = {"seed": 3, "sweep": {"train": "toy_trainer"}}
    folder = write_spec(tmp_path, make_spec(config))
    trust.declare_names([config])
    edit_config(folder / "spec.json", sweep={"train": "os"})
    out = io.StringIO()
    Pool({"slots": 1}, Progress({}, out), None).run([folder])
    assert f"{folder / 'spec.json'}: sweep.train = os: not trusted" in out.getvalue()
    assert not (folder / "run.json").exists()
    edit_config(folder / "spec.json", seed=4)
    with pytest.raises(InvalidConfig, match="seed is 4, its run was planned with 3"):
        Pool({"slots": 1}, Progress({}, out), None).run([folder])


@pytest.mark.rare
def test_hydra_run_mode_trains_the_composed_config(attnlab):
    line = ("hydra.mode=RUN", "seed=0")
    assert attnlab(*line)[0] == 0
    (attnlab.folder / "harmful.py").write_text(HARMFUL_MODULE)
    [spec] = list_run_files(attnlab, "spec.json")
    [record] = list_run_files(attnlab, "run.json")
    edit_config(spec, sweep={"train": "harmful"})
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "measured_by": {}}))
    status, out, err = attnlab(*line)
    assert status == 0, out + err
    status, out, err = attnlab("hydra.mode=RUN", f"id={spec.parent.name}")
    assert status == 0, out + err
    assert not (attnlab.folder / "harmed").exists()
    edit_config(spec, sweep={"train": "harmful"})
    status, _, err = attnlab("hydra.mode=RUN", f"id={spec.parent.name}")
    assert status == 2
    assert "sweep.train = harmful" in err
    assert not (attnlab.folder / "harmed").exists()
