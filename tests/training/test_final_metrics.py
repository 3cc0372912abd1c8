"""Memory saved for the backward pass is that of a training pass."""

import torch

from attnlab.model.build import build_model, instantiate_config
from attnlab.training.final_metrics import MEASURED_PARTS

torch.set_num_threads(1)


def count_saved_bytes(config):
    """Return the bytes that one training pass of a config saves for the backward pass."""
    data = instantiate_config(config["data"])
    module = instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size))
    return MEASURED_PARTS["memory"].measure(module, data, [], config)["memory"]["saved_for_backward_bytes"]


def test_mixed_precision_saves_less_for_the_backward_pass(compose):
    saved = {
        name: count_saved_bytes(compose(f"trainer.precision={name}")) for name in ("32-true", "bf16-mixed")
    }
    assert saved["bf16-mixed"] < 0.8 * saved["32-true"]
