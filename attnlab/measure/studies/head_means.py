"""Where the heads of a trained model look, as one number a score: means over all heads."""

from typing import Any

import numpy as np

from attnlab.measure.heads import head_scores, probe_texts
from attnlab.measure.maps import attention_layers
from attnlab.measure.measurement import Measured
from attnlab.measure.scores import SCORES
from attnlab.model.transformer import Transformer
from attnlab.store.schema import Metric


def metric(score: str) -> Metric:
    """The mean of a head score over all heads; which of two is better nobody can say."""
    label = SCORES[score].label if score in SCORES else score
    return Metric(f"heads/{score}", f"{label}, mean of all heads")


class HeadMeans:
    """Metrics: `heads/<score>` for every head score that the model has, as at the end of a training run."""

    def measures(self) -> list[str]:
        """The names of all that it may give: a model or a text may lack some."""
        return [metric(score).name for score in SCORES]

    def check(self, model: Transformer, data: Any) -> None:
        """ValueError where there are no heads."""
        if not attention_layers(model):
            raise ValueError("measurement: no layer of this model has attention, and so none has heads")

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Of the first validation texts, and of random tokens repeated four times."""
        texts = probe_texts(next(iter(data.val_dataloader())))
        scores = head_scores(module.model, texts, data.task.length)
        tables = {name: table for name, table in scores.items() if isinstance(table, list)}
        means = {name: float(np.mean(np.concatenate(table))) for name, table in tables.items()}
        return Measured({metric(name).name: mean for name, mean in means.items()}, map(metric, means))
