"""A list of options of one group is rejected in every override.

Hydra would merge the options into one run, and the run's record would name none of them.
"""

import json
import shutil

import pytest
from hydra.errors import HydraException
from hydra.types import RunMode
from toys import TOY, shipped_loader

from attnlab.errors import InvalidConfig


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "'heads=[gqa,mha]'",
            "heads=[gqa,mha]: a run takes one option of heads: write heads=gqa alone, or sweep on the "
            "command line with heads=gqa,mha\n",
        ),
        ("'heads=[gqa]'", "heads=[gqa]: a run takes one option of heads: write heads=gqa\n"),
        ("'heads=[]'", "heads=[]: a run takes one option of heads: write heads=OPTION\n"),
        ("'heads=[null]'", "heads=[null]: give the name of an option\n"),
        ("-m 'position=[rope,alibi]'", "position=[rope,alibi]: a run takes one option of position: "),
        ("hydra.mode=RUN 'model=[llama,gpt]'", "model=[llama,gpt]: a run takes one option of model: "),
        ("'heads=[gqa,mha],mqa'", "heads=[gqa,mha]: a run takes one option of heads: "),
        (
            "'data/tokenizer=[bpe,char]'",
            "data/tokenizer=[bpe,char]: a run takes one option of data/tokenizer: write data/tokenizer=bpe ",
        ),
        (
            "'+heads@second=[gqa,mha]'",
            "+heads@second=[gqa,mha]: a run takes one option of heads: write +heads@second=gqa alone",
        ),
        (
            "+experiment=gqa_vs_mha 'mask=[full,window]'",
            "mask=[full,window]: a run takes one option of ",
        ),
        (
            "'+experiment=[aa_null,optim]'",
            "+experiment=[aa_null,optim]: a run takes one option ",
        ),
        ("plan 'heads=[gqa,mha]'", "heads=[gqa,mha]: a run takes one option of heads: "),
        ("check 'heads=[gqa,mha]'", "heads=[gqa,mha]: a run takes one option of heads: "),
        ("bench decode 'heads=[gqa,mha]'", "heads=[gqa,mha]: a run takes one option of heads: "),
        (
            "compare 'heads=[gqa,mqa]' heads=mha",
            "arm gqa_mqa: heads=[gqa,mqa]: a run takes one option ",
        ),
        (
            "compare heads=mha heads=gqa 'mask=[full,window]'",
            "mask=[full,window]: a run takes ",
        ),
        (
            "judge 'heads=[gqa,mqa]' heads=mha --margin 1",
            "arm gqa_mqa: heads=[gqa,mqa]: a run ",
        ),
    ],
)
def test_option_list_on_the_command_line_is_rejected_in_one_line(
    line, message, refuse, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert refuse(line).startswith(f"attnlab: {message}")
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("old_text", "new_text", "error"),
    [
        ("two: [heads=two]", 'two: ["heads=[two,one]"]', HydraException),
        ("S: []", 'S: ["heads=[two,one]"]', HydraException),
        ("name: heads", "defaults: [{override /heads: [two, one]}]\nname: heads", InvalidConfig),
    ],
)
def test_option_list_in_an_experiment_file_is_rejected(plan_toy, tmp_path, old_text, new_text, error):
    file = shutil.copytree(TOY / "conf", tmp_path / "conf") / "experiment" / "heads.yaml"
    text = file.read_text("utf-8")
    assert text.count(old_text) == 1
    file.write_text(text.replace(old_text, new_text), encoding="utf-8")
    with pytest.raises(error, match="a run takes one option of heads") as raised:
        plan_toy("+experiment=heads", conf=tmp_path / "conf")
    if "two:" in old_text:
        assert "arm two: " in raised.value.__notes__[0]
    if error is InvalidConfig:
        assert str(raised.value).startswith(f"{file}: defaults: heads: [two, one]: ")


def test_logger_and_callbacks_accept_several_options():
    line = ["logger=[csv,wandb]", "+callbacks=[ema]"]
    config = shipped_loader().load_configuration("config", line, RunMode.MULTIRUN)
    assert "ema" in config.callbacks
    assert len(config.logger) > 1


def test_chosen_options_are_recorded_for_single_runs_and_sweeps(plan_toy):
    [plan] = plan_toy("heads=four", "seed=0")
    assert plan.runs[0].use.axes == {"heads": "four"}
    [sweep_plan] = plan_toy("heads=one,four", "seed=0")
    assert [run.use.axes for run in sweep_plan.runs] == [{"heads": "one"}, {"heads": "four"}]


@pytest.mark.rare
def test_plain_hydra_run_records_its_options(attnlab):
    status, _, err = attnlab("heads=four", "hydra.mode=RUN")
    assert status == 0, err
    [path] = (attnlab.folder / "runs").glob("*/spec.json")
    assert json.loads(path.read_text())["use"]["axes"] == {"heads": "four"}
