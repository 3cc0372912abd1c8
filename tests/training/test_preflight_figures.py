"""What a run can measure is known before it starts."""

import pytest

from attnlab.training.preflight import check


@pytest.mark.parametrize(
    ("line", "has", "lacks"),
    [
        (["size=debug"], ["val/loss", "val/bits_per_byte", "train_step_ms", "saved_for_backward_bytes",
                            "train_tokens_per_s"],
         ["length/2", "val/accuracy"]),
        (["size=debug", "measure.timing=false", "measure.lengths=[1,1.5]"],
         ["length/1", "length/1.5", "length/last/1.5", "length/excess/1.5"], ["train_step_ms", "length/2"]),
    ],
)  # fmt: skip
def test_the_figures_of_a_run_are_told_when_it_is_planned(compose, line, has, lacks):
    figures = set(check(compose(*line))["figures"])
    assert set(has) <= figures
    assert not figures & set(lacks)
