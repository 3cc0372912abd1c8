"""Run directories from an untrusted source: a command uses only the configs that it composed."""

import json

import pytest

from attnlab.errors import InvalidConfig
from attnlab.store import run_directories
from attnlab.store.guards import digests
from attnlab.store.run_schema import RunResult
from attnlab.sweep import arm_timing

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
def test_result_with_another_config_or_trainer_is_rejected_before_training(attnlab):
    assert attnlab(*LINE)[0] == 0
    (attnlab.folder / "harmful.py").write_text(HARMFUL_MODULE)
    first = list_run_files(attnlab, "run.json")[0]
    before = first.read_text()
    config = json.loads(before)["config"]
    for key, value, message in (
        ("model", config["model"] | {"width": 99}, f"differs from the config of run {first.parent.name}"),
        ("sweep", {"train": "harmful"}, "sweep.train = harmful"),
    ):
        edit_config(first, **{key: value})
        status, _, err = attnlab(*LINE)
        assert (status, err.count("\n")) == (2, 1), err
        assert message in err
        assert str(first.relative_to(attnlab.folder)) in err
        first.write_text(before)
    assert len(attnlab.load_attempts()) == 2
    assert not (attnlab.folder / "harmed").exists()


def test_run_with_an_untrusted_target_is_not_timed(tmp_path):
    folder, harm = tmp_path / "aaaa", {"_target_": "os.mkdir", "path": str(tmp_path / "harmed")}
    folder.mkdir()
    record = RunResult(id="aaaa", status="done", seed=0, config={"model": harm}, metrics={"val/loss": 1.0})
    run_directories.write_run_result(folder, record)
    line = [str(tmp_path / "times.json"), json.dumps({"one": str(folder)}), "[]"]
    with pytest.raises(InvalidConfig, match=r"run.json: model._target_ = os.mkdir"):
        arm_timing.main(line)
    assert not (tmp_path / "harmed").exists()


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
