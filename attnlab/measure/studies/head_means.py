"""Head scores of a trained model as one number per score: means over all heads."""

from typing import Any

import numpy as np

from attnlab.measure.attention_maps import find_attention_layers
from attnlab.measure.head_scoring import compute_head_scores, select_probe_examples
from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.pattern_scores import HEAD_SCORES
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric


def head_mean_metric(score: str) -> Metric:
    """Return the metric of a head score's mean over all heads; neither direction is better."""
    label = HEAD_SCORES[score].label if score in HEAD_SCORES else score
    return Metric(f"heads/{score}", f"{label}, mean over heads")


class HeadMeans:
    """Metrics: `heads/<score>` for every head score of the model, as at the end of a training run."""

    metrics = tuple(map(head_mean_metric, HEAD_SCORES))  # a model or a text may lack some

    def check(self, model: Transformer, data: Any) -> None:
        """Validate the model.

        Raises:
            ValueError: the model has no heads.
        """
        if not find_attention_layers(model):
            raise ValueError("measurement needs attention heads, and no layer of this model has any")

    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Score the first validation texts, and random tokens repeated four times."""
        examples = select_probe_examples(next(iter(data.val_dataloader())))
        scores = compute_head_scores(module.model, examples, data.task.length)
        tables = {name: table for name, table in scores.items() if isinstance(table, list)}
        means = {name: float(np.mean(np.concatenate(table))) for name, table in tables.items()}
        return MeasurementResult({head_mean_metric(name).name: mean for name, mean in means.items()})
