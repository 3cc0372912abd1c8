"""The metrics of a run are known before it starts."""

import pytest

from attnlab.training.preflight import check


@pytest.mark.parametrize(
    ("line", "included", "excluded"),
    [
        (["size=debug"], ["val/loss", "val/bits_per_byte", "train_step_ms", "saved_for_backward_bytes",
                            "train_tokens_per_s"],
         ["length/2", "val/accuracy"]),
        (["size=debug", "measure.timing=false", "measure.lengths=[1,1.5]"],
         ["length/1", "length/1.5", "length/last/1.5", "length/excess/1.5"], ["train_step_ms", "length/2"]),
    ],
)  # fmt: skip
def test_the_check_lists_the_metrics_of_a_run(compose, line, included, excluded):
    names = set(check(compose(*line))["metric_names"])
    assert set(included) <= names
    assert not names & set(excluded)
