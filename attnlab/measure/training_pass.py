"""Forward passes as in training, for measurements of a trained model."""

from attnlab.data.data_module import take_rows
from attnlab.data.task import Batch


def list_device_passes(batch: Batch, micro_batches: int, devices: int) -> list[Batch]:
    """Return the parts of a batch that the first of several devices computes one after the other."""
    parts = micro_batches * devices
    return [take_rows(batch, part * devices, parts) for part in range(micro_batches)]
