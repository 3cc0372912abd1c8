"""A resumed run records how closely it repeats the steps since its checkpoint."""

import json
import math

import pytest
import torch

from attnlab.store.atomic_files import read_json
from attnlab.training import callbacks, run

torch.set_num_threads(1)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("off", [0.0, 0.25])
def test_a_resumed_run_records_how_closely_it_repeats_steps(compose, make_run_dir, monkeypatch, off):
    folder = make_run_dir("run", compose("trainer.max_steps=11", "sweep.checkpoint_every=3"))
    on_step_end = callbacks.ProgressWriter.on_step_end

    def stop_at(step):
        def stop(self, trainer, module):
            self.last_written = 0.0
            on_step_end(self, trainer, module)
            if trainer.global_step == step:
                raise KeyError("power cut")

        return stop

    for step in (5, 8):
        with monkeypatch.context() as patch:
            patch.setattr(callbacks.ProgressWriter, "on_step_end", stop_at(step))
            with pytest.raises(KeyError, match="power cut"):
                run.run(folder)
    progress = read_json(folder / "progress.json")
    (folder / "progress.json").write_text(json.dumps(progress | {"loss": progress["loss"] + off}))
    run.run(folder)
    first, second = read_json(folder / "run.json")["resumed"]
    assert first == {"step": 3, "again": 2, "off": 0.0}
    assert (second["step"], second["again"]) == (6, 2)
    assert math.isclose(second["off"], off, abs_tol=1e-9)
