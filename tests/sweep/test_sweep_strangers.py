"""A store that is somebody else's: what a command trains, measures and continues is what it composed."""

import json

import pytest

from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.guards import digests
from attnlab.store.schema import RunRecord
from attnlab.sweep import timing

LINE = ("+experiment=heads", "arms=[two,one]", "claims=[]", "match=none", "seed=0")
OTHER = "import pathlib\npathlib.Path('harmed').touch()\n"


def stored(attnlab, name):
    return sorted(attnlab.folder.glob(f"runs/*/{name}"))


def change(path, **config):
    content = json.loads(path.read_text())
    for key, value in config.items():
        content["config"][key] = value
    if content.get("seal"):  # a stranger can make it as well
        content["seal"] = digests.seal(content)
    path.write_text(json.dumps(content))


@pytest.mark.rare
def test_a_strangers_spec_under_the_id_of_a_run_is_not_what_is_trained(attnlab):
    assert attnlab(*LINE)[0] == 0
    (attnlab.folder / "harmful.py").write_text(OTHER)
    for spec in stored(attnlab, "spec.json"):
        change(spec, sweep={"train": "harmful"}, seed=7)
    for record in stored(attnlab, "run.json"):
        record.unlink()
    status, out, err = attnlab(*LINE)
    assert status == 0, out + err
    assert not (attnlab.folder / "harmed").exists()
    assert [seed for _, seed, *_ in attnlab.trained()] == ["0"] * 4


@pytest.mark.rare
def test_a_record_of_another_config_or_trainer_is_refused_before_anything_is_done(attnlab):
    assert attnlab(*LINE)[0] == 0
    (attnlab.folder / "harmful.py").write_text(OTHER)
    first = stored(attnlab, "run.json")[0]
    before = first.read_text()
    config = json.loads(before)["config"]
    for key, value, told in (
        ("model", config["model"] | {"width": 99}, f"another config than run {first.parent.name}"),
        ("sweep", {"train": "harmful"}, "sweep.train = harmful"),
    ):
        change(first, **{key: value})
        status, _, err = attnlab(*LINE)
        assert (status, err.count("\n")) == (2, 1), err
        assert told in err
        assert str(first.relative_to(attnlab.folder)) in err
        first.write_text(before)
    assert len(attnlab.trained()) == 2
    assert not (attnlab.folder / "harmed").exists()


def test_of_a_strangers_record_nothing_is_timed(tmp_path):
    folder, harm = tmp_path / "aaaa", {"_target_": "os.mkdir", "path": str(tmp_path / "harmed")}
    folder.mkdir()
    record = RunRecord(id="aaaa", status="done", seed=0, config={"model": harm}, metrics={"val/loss": 1.0})
    runs.write_record(folder, record)
    line = [str(tmp_path / "times.json"), json.dumps({"one": str(folder)}), "[]"]
    with pytest.raises(Refused, match=r"run.json: model._target_ = os.mkdir"):
        timing.main(line)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.rare
def test_a_single_run_in_this_process_is_what_was_composed_too(attnlab):
    line = ("hydra.mode=RUN", "seed=0")
    assert attnlab(*line)[0] == 0
    (attnlab.folder / "harmful.py").write_text(OTHER)
    [spec] = stored(attnlab, "spec.json")
    [record] = stored(attnlab, "run.json")
    change(spec, sweep={"train": "harmful"})
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "measured_by": {}}))
    status, out, err = attnlab(*line)
    assert status == 0, out + err
    status, out, err = attnlab("hydra.mode=RUN", f"id={spec.parent.name}")
    assert status == 0, out + err
    assert not (attnlab.folder / "harmed").exists()
    change(spec, sweep={"train": "harmful"})
    status, _, err = attnlab("hydra.mode=RUN", f"id={spec.parent.name}")
    assert status == 2
    assert "sweep.train = harmful" in err
    assert not (attnlab.folder / "harmed").exists()
