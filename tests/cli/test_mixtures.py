"""A list of options of one group is refused wherever overrides are written: Hydra would lay them over each
other in one run, and its record would name none of them.
"""

import json

import pytest
from hydra.errors import HydraException
from hydra.types import RunMode
from toys import TOY, shipped

from attnlab.cli import main as entry
from attnlab.errors import Refused

EXPERIMENT = (TOY / "conf" / "experiment" / "heads.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            ["heads=[gqa,mha]"],
            "heads=[gqa,mha]: a run has one option of heads: write heads=gqa alone, or sweep on the command "
            "line with heads=gqa,mha\n",
        ),
        (["heads=[gqa]"], "heads=[gqa]: a run has one option of heads: write heads=gqa\n"),
        (["heads=[]"], "heads=[]: a run has one option of heads: name it, as in heads=OPTION\n"),
        (["heads=[null]"], "heads=[null]: an option of a group is a name\n"),
        (["-m", "position=[rope,alibi]"], "position=[rope,alibi]: a run has one option of position: "),
        (["hydra.mode=RUN", "model=[llama,gpt]"], "model=[llama,gpt]: a run has one option of model: "),
        (["heads=[gqa,mha],mqa"], "heads=[gqa,mha]: a run has one option of heads: "),
        (
            ["data/tokenizer=[bpe,char]"],
            "data/tokenizer=[bpe,char]: a run has one option of data/tokenizer: write data/tokenizer=bpe ",
        ),
        (
            ["+heads@second=[gqa,mha]"],
            "+heads@second=[gqa,mha]: a run has one option of heads: write +heads@second=gqa alone",
        ),
        (
            ["+experiment=gqa_vs_mha", "mask=[full,window]"],
            "mask=[full,window]: a run has one option of ",
        ),
        (
            ["+experiment=[aa_null,optim]"],
            "+experiment=[aa_null,optim]: a run has one option ",
        ),
        (["plan", "heads=[gqa,mha]"], "heads=[gqa,mha]: a run has one option of heads: "),
        (["check", "heads=[gqa,mha]"], "heads=[gqa,mha]: a run has one option of heads: "),
        (["bench", "decode", "heads=[gqa,mha]"], "heads=[gqa,mha]: a run has one option of heads: "),
        (["compare", "heads=[gqa,mqa]", "heads=mha"], "arm gqa_mqa: heads=[gqa,mqa]: a run has one option "),
        (
            ["compare", "heads=mha", "heads=gqa", "mask=[full,window]"],
            "mask=[full,window]: a run has ",
        ),
        (
            ["judge", "heads=[gqa,mqa]", "heads=mha", "--margin", "1"],
            "arm gqa_mqa: heads=[gqa,mqa]: a run ",
        ),
    ],
)
def test_a_list_of_options_on_a_command_line_is_refused_in_one_line(line, said, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert entry.main(line) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"attnlab: {said}")
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("two: [heads=two]", 'two: ["heads=[two,one]"]', HydraException),
        ("S: []", 'S: ["heads=[two,one]"]', HydraException),
        ("name: heads", "defaults: [{override /heads: [two, one]}]\nname: heads", Refused),
    ],
)
def test_a_list_of_options_in_an_experiment_file_is_refused(planned, tmp_path, before, after, error):
    folder = tmp_path / "conf"
    for path in (TOY / "conf").rglob("*.yaml"):
        copy = folder / path.relative_to(TOY / "conf")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text("utf-8"), encoding="utf-8")
    assert EXPERIMENT.count(before) == 1
    (folder / "experiment" / "heads.yaml").write_text(EXPERIMENT.replace(before, after), encoding="utf-8")
    with pytest.raises(error, match="a run has one option of heads") as found:
        planned("+experiment=heads", conf=folder)
    if "two:" in before:
        assert "arm two: " in found.value.__notes__[0]
    if error is Refused:
        assert str(found.value).startswith(
            f"{folder / 'experiment' / 'heads.yaml'}: defaults: heads: [two, one]: "
        )


def test_groups_whose_options_stand_beside_each_other_still_take_several():
    line = ["logger=[csv,wandb]", "+callbacks=[ema]"]
    config = shipped().load_configuration("config", line, RunMode.MULTIRUN)
    assert "ema" in config.callbacks
    assert len(config.logger) > 1


def test_every_chosen_option_is_recorded_for_each_way_to_run(planned):
    [plan] = planned("heads=four", "seed=0")
    assert plan.runs[0].use.axes == {"heads": "four"}
    [swept] = planned("heads=one,four", "seed=0")
    assert [run.use.axes for run in swept.runs] == [{"heads": "one"}, {"heads": "four"}]


@pytest.mark.rare
def test_a_plain_hydra_run_records_its_options_too(attnlab):
    status, _, err = attnlab("heads=four", "hydra.mode=RUN")
    assert status == 0, err
    [path] = (attnlab.folder / "runs").glob("*/spec.json")
    assert json.loads(path.read_text())["use"]["axes"] == {"heads": "four"}
