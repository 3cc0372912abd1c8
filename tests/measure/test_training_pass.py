"""Measurements repeat the forward passes of a training step."""

import pytest
import torch

from attnlab.measure.training_pass import list_device_passes
from attnlab.model.build import instantiate_config


@pytest.mark.parametrize(("micro_batches", "devices"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_passes_are_those_of_the_first_device_in_training(compose, micro_batches, devices):
    data = instantiate_config(compose("data.batch_size=12")["data"])
    data.micro_batches = micro_batches
    trained = data._draw_step_batches(0, passes=micro_batches, rank=0, ranks=devices)
    passes = list_device_passes(data.task.train_batch(data.seed, 0, 12), micro_batches, devices)
    assert len(passes) == micro_batches
    for actual, expected in zip(passes, trained, strict=True):
        assert torch.equal(actual["tokens"], expected["tokens"])
