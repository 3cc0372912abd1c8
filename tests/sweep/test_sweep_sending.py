"""What W&B is sent, whatever its server does: nothing is lost, little is waited for, all can go later."""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from wandb_files import history, summary_of
from wandb_server import FAULTS, STAGES, Server, Silent

from attnlab.sweep.execute import sending
from attnlab.sweep.execute.sending import Sending
from attnlab.training.loggers.wandb import Wandb

LOGGER = {
    "mode": "online", "project": "toys", "entity": None, "report": False, "workspace": False, "patience": 4,
}  # fmt: skip
LOSSES = [n / 10 for n in range(20)]
RUN = "abcd0123abcd0123"


@pytest.fixture
def at(monkeypatch, tmp_path):
    """`at(server)`: W&B's settings point at it, and its logs stay here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sending, "LOOK_SECONDS", 0.05)

    def point(server):
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)

    yield point
    import wandb

    with suppress(ConnectionError):
        wandb.teardown()


def log(root: Path, name: str = RUN, losses=LOSSES, first=0) -> Path:
    """What a run leaves, from its `first` step on; its folder."""
    mirror = Wandb(**LOGGER).logger(root / name, id=name)
    for n, loss in enumerate(losses, first):
        mirror.log_metrics({"val/loss": loss}, step=n)
    mirror.end({"memory/toy": 256}, 0)
    return root / name


def send_later(folder: Path, server: Server) -> str:
    """Gives the very command of the note, in a shell; what it says."""
    import wandb

    wandb.teardown()
    line = (folder / "wandb" / "unsent.txt").read_text().partition("send it: ")[2]
    here = (
        f"export PATH={Path(sys.executable).parent}:$PATH WANDB_BASE_URL={server.url} WANDB_SERVICE=; {line}"
    )
    done = subprocess.run(here, shell=True, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def test_a_run_is_sent_whole_and_leaves_no_note(at, tmp_path):
    with Server() as server:
        at(server)
        sender = Sending(tmp_path, LOGGER | {"patience": 60}, None)
        sender.watch([RUN])
        folder = log(tmp_path)
        sender.end()
    assert [row["val/loss"] for row in server.history(RUN)] == LOSSES, sender.trouble
    assert server.summaries[RUN]["memory/toy"] == 256
    assert not (folder / "wandb" / "unsent.txt").exists()
    assert sender.trouble == ""


@pytest.mark.rare
def test_a_run_appears_while_it_goes_on(at, tmp_path):
    with Server() as server:
        at(server)
        sender = Sending(tmp_path, LOGGER | {"patience": 60}, None)
        sender.watch([RUN])
        mirror = Wandb(**LOGGER).logger(tmp_path / RUN, id=RUN)
        mirror.log_metrics({"val/loss": 1.0}, step=0)
        deadline = time.monotonic() + 60
        while not server.runs and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.runs
        mirror.end({}, 0)
        sender.end()
        assert [row["val/loss"] for row in server.history(RUN)] == [1.0]


AT_ONCE = ("401", "403", "portal", "redirects", "cut", "nonsense")  # W&B waits out the others
QUICK = [("portal", "end")]
CASES = [  # every fault at one of the stages, every stage with some of the faults
    pytest.param(fault, stage, marks=[] if (fault, stage) in QUICK else pytest.mark.rare)
    for m, stage in enumerate(STAGES)
    for n, fault in enumerate(fault for fault in FAULTS if fault != "dies")
    if (m + n) % len(STAGES) == 0 or (fault, stage) in QUICK
]


@pytest.mark.parametrize(("fault", "stage"), CASES)
def test_no_fault_at_any_stage_loses_anything(at, tmp_path, capsys, fault, stage):
    patience = 20 if fault in AT_ONCE else 4
    with Server(fault, stage) as server:
        at(server)
        sender = Sending(tmp_path, LOGGER | {"patience": patience}, None)
        sender.watch([RUN])
        folder = log(tmp_path)
        began = time.monotonic()
        sender.end()
        assert time.monotonic() - began < patience + 1
        sender.tell()
    assert server.met or fault not in AT_ONCE
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("W&B lacks 1 runs (")
    (file,) = folder.glob("wandb/*run-*/*.wandb")
    assert [float(row["val/loss"]) for row in history(file)] == LOSSES
    assert summary_of(file)["memory/toy"] == "256"
    with Server() as sound:
        said = send_later(folder, sound)
    assert [row["val/loss"] for row in sound.history(RUN)] == LOSSES, said
    assert sound.summaries[RUN]["memory/toy"] == 256


def test_after_the_first_failure_nothing_is_tried_or_waited_for(at, tmp_path):
    with Server("401", "init") as server:
        at(server)
        sender = Sending(tmp_path, LOGGER | {"patience": 20}, None)
        log(tmp_path)
        sender.watch([RUN])
        deadline = time.monotonic() + 30
        while not sender.trouble and time.monotonic() < deadline:
            time.sleep(0.02)
        met = server.met
        second = log(tmp_path, "abcd0123abcd0124")
        sender.watch([second.name])
        began = time.monotonic()
        sender.end()
        assert time.monotonic() - began < 1
        assert server.met == met
        assert sender.trouble in (second / "wandb" / "unsent.txt").read_text()


@pytest.mark.rare
def test_the_next_command_sends_what_the_last_one_could_not(at, tmp_path):
    with Server("hangs", "middle") as server:
        at(server)
        sender = Sending(tmp_path, LOGGER, None)
        sender.watch([RUN])
        folder = log(tmp_path)
        sender.end()
    assert (folder / "wandb" / "unsent.txt").exists()
    with Server() as server:
        at(server)
        sender = Sending(tmp_path, LOGGER | {"patience": 60}, None)
        sender.watch([RUN])
        sender.end()
    assert [row["val/loss"] for row in server.history(RUN)] == LOSSES, sender.trouble
    assert not (folder / "wandb" / "unsent.txt").exists()


@pytest.mark.rare
def test_a_run_that_goes_on_later_is_one_run_with_all_its_rows(at, tmp_path):
    with Server() as server:
        at(server)
        for losses, first in ((LOSSES[:12], 0), (LOSSES[12:], 12)):
            sender = Sending(tmp_path, LOGGER | {"patience": 60}, None)
            sender.watch([RUN])
            log(tmp_path, losses=losses, first=first)
            sender.end()
            assert sender.trouble == ""
    assert [row["val/loss"] for row in server.history(RUN)] == LOSSES


@pytest.mark.parametrize("marked_at", [2, 3])
def test_what_wandb_gives_up_is_given_to_it_once_more_then_its_reason_told(monkeypatch, tmp_path, marked_at):
    done, left = tmp_path / "run-done.wandb", tmp_path / "run-left.wandb"
    log = tmp_path / "wandb" / "logs" / "debug-sync.20260101.000000.log"
    log.parent.mkdir(parents=True)
    asked = []

    def sync(args, standalone_mode):
        asked.append([file for file in (done, left) if str(file) in args])
        for file in (done, left) if len(asked) == marked_at else (done,):
            file.with_suffix(".wandb.synced").touch()
        said = {"level": "ERROR", "sync_path": str(left), "error": f"error 50{len(asked)}"}
        log.write_text("\n".join(map(json.dumps, (said, said | {"sync_path": str(done), "error": "none"}))))

    monkeypatch.setattr("wandb.cli.cli.cli.main", sync)
    gives_up = pytest.raises(RuntimeError, match=r"^W&B could not send it; error 502$")
    with gives_up if marked_at == 3 else nullcontext():
        sending._sync([done, left], True, tmp_path)
    assert asked == [[done, left], [left]]


def test_a_batch_does_not_answer_for_a_file_that_another_still_sends(at, tmp_path, monkeypatch):
    login = SimpleNamespace(api_key="x" * 40)
    monkeypatch.setattr("wandb.sdk.lib.wbauth.session_credentials", lambda host: login)
    with Server() as server:
        at(server)
        log(tmp_path)
        (first,) = sending.unsent(tmp_path / RUN / "wandb", RUN)
        time.sleep(1.1)  # W&B names its folders by the second
        log(tmp_path, losses=[], first=20)
        (later,) = set(sending.unsent(tmp_path / RUN / "wandb", RUN)) - {first}
        server.runs.append({"name": RUN})
        server.rows[RUN] = {at: {} for at in range(8)}
        server.summaries[RUN] = dict.fromkeys(sending._logged([first, later])[1], 0)
        later.with_suffix(".wandb.synced").touch()
        sending._require([later], LOGGER["project"], None)
        first.with_suffix(".wandb.synced").touch()
        with pytest.raises(RuntimeError, match="the server has 8 of 20 rows"):
            sending._require([later], LOGGER["project"], None)


SWEEP = ("+experiment=heads", "arms=[two,one,four]", "seeds=[0,1]", "sweep.train=logging_trainer")


def line(patience):
    given = {"_target_": "attnlab.training.loggers.wandb.Wandb", **LOGGER, "patience": patience}
    return [f"++logger.{key}={'null' if value is None else value}" for key, value in given.items()]


@pytest.mark.rare
def test_a_hanging_server_costs_a_sweep_of_many_runs_twenty_seconds_in_all(attnlab):
    attnlab.environment |= {"WANDB_API_KEY": "x" * 40, "WANDB_SERVICE": ""}
    with Silent() as server:
        attnlab.environment["WANDB_BASE_URL"] = server.url
        process = attnlab.start(*SWEEP, "sweep.slots=1", *line(20))
        out, err = process.communicate(timeout=200)
        ended = time.time()
    assert process.returncode == 0, err
    records = sorted(path.stat().st_mtime for path in attnlab.folder.glob("runs/*/run.json"))
    (written,) = attnlab.folder.glob("runs/wandb/*.sent")  # the report's run is on disk, and the wait begins
    assert len(records) == 6
    assert 10 < ended - written.stat().st_mtime < 20 + 15  # and the command's own end, on a slow machine
    assert records[-1] - records[0] < 20  # no run waits for it
    assert out.count("W&B lacks 7 runs") == 1
    assert len(list(attnlab.folder.glob("runs/*/wandb/unsent.txt"))) == 6


@pytest.mark.rare
def test_a_sound_server_gets_every_run_of_a_sweep_and_its_report(attnlab):
    attnlab.environment |= {"WANDB_API_KEY": "x" * 40, "WANDB_SERVICE": ""}
    with Server() as server:
        attnlab.environment["WANDB_BASE_URL"] = server.url
        process = attnlab.start(*SWEEP, *line(120))
        out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert "W&B lacks" not in out
    names = {path.parent.name for path in attnlab.folder.glob("runs/*/run.json")}
    assert len(names) == 6
    for name in names:
        assert [row["val/loss"] for row in server.history(name)] == LOSSES
        assert server.summaries[name]["memory/toy"] == 256
    (report,) = set(server.summaries) - names
    assert "verdict" in server.summaries[report]
    assert not list(attnlab.folder.glob("runs/**/unsent.txt"))
    assert not os.path.exists(attnlab.folder / "wandb")
