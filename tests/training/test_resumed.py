"""A run that goes on from a checkpoint says how close it comes to what it was before."""

import json
import math

import pytest
import torch

from attnlab.store.files import read_json
from attnlab.training import callbacks, run

torch.set_num_threads(1)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("off", [0.0, 0.25])
def test_a_run_that_goes_on_says_how_close_the_steps_come_that_it_trains_again(
    compose, store, monkeypatch, off
):
    folder = store("run", compose("trainer.max_steps=11", "sweep.checkpoint_every=3"))
    beat = callbacks.Heartbeat.on_step_end

    def stopping(at):
        def stop(self, trainer, module):
            self.last = 0.0
            beat(self, trainer, module)
            if trainer.global_step == at:
                raise KeyError("power cut")

        return stop

    for at in (5, 8):
        with monkeypatch.context() as patch:
            patch.setattr(callbacks.Heartbeat, "on_step_end", stopping(at))
            with pytest.raises(KeyError, match="power cut"):
                run.run(folder)
    told = read_json(folder / "progress.json")
    (folder / "progress.json").write_text(json.dumps(told | {"loss": told["loss"] + off}))
    run.run(folder)
    first, second = read_json(folder / "run.json")["resumed"]
    assert first == {"step": 3, "again": 2, "off": 0.0}
    assert (second["step"], second["again"]) == (6, 2)
    assert math.isclose(second["off"], off, abs_tol=1e-9)
