"""MLflow, by Lightning's MLFlowLogger: a run of a tracking server, or of a folder in the store."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from attnlab.store.fingerprint import flatten
from attnlab.training.loggers.labels import flat
from attnlab.training.loggers.mirror import Mirror


@final
@dataclass(frozen=True)
class MLflow:
    """Where it is logged to; `MLFLOW_TRACKING_URI` is honoured over the config, as MLflow's users expect.
    ValueError where MLflow is not installed.
    """

    experiment_name: str
    tracking_uri: str | None

    def __post_init__(self) -> None:
        if find_spec("mlflow") is None:
            raise ValueError("logger=mlflow needs the package: pip install 'attnlab[mlflow]'")

    def logger(self, folder: Path, batch_tokens: int | None = None, **run: Any) -> Mirror:
        """Lightning's logger over it."""
        uri = os.environ.get("MLFLOW_TRACKING_URI") or self.tracking_uri
        uri = uri or (folder.parent / "mlflow").absolute().as_uri()
        return Mirror("MLflow", lambda: _Log(folder, self.experiment_name, uri, run), batch_tokens)


class _Log:
    """A run that goes on is found by the id of MLflow's, which is kept in the run's folder."""

    def __init__(self, folder: Path, experiment: str, uri: str, run: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from pytorch_lightning.loggers import MLFlowLogger

        kept = folder / "mlflow" / "run_id"
        before = kept.read_text(encoding="utf-8") if kept.exists() else None
        tags = {"experiment": run.get("group"), "arm": run.get("job_type"), "attnlab_id": run["id"]}
        self._logger = MLFlowLogger(
            experiment,
            run_name=run["name"],
            tracking_uri=uri,
            tags={name: value for name, value in tags.items() if value},
            run_id=before if before and _has(MlflowClient(uri), before) else None,
        )
        self._begun = self._logger._run_id is not None
        self._id, self._client = str(self._logger.run_id), self._logger.experiment
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(self._id, encoding="utf-8")
        if self._begun:
            self._client.update_run(self._id, status="RUNNING")
        else:
            # its files are called by the keys: one that begins with another and a slash would be in its way
            plain = {key.replace("/", "."): leaf for key, leaf in flatten(flat(run))}
            self._logger.log_hyperparams(plain)

    def last(self) -> dict[str, int]:
        if not self._begun:
            return {}
        names = self._client.get_run(self._id).data.metrics
        last = {
            name: max(row.step for row in self._client.get_metric_history(self._id, name)) for name in names
        }
        for file in self._client.list_artifacts(self._id, "images"):
            if found := re.match(r"images/(.+?)\+step\+(\d+)\+", file.path):
                name = found[1].replace("~", "/")
                last[name] = max(last.get(name, -1), int(found[2]))
        return last

    def metrics(self, values: Mapping[str, float], step: int | None) -> None:
        self._logger.log_metrics(values, step)

    def image(self, key: str, image: Any, step: int | None, caption: str) -> None:
        self._client.log_image(self._id, image, key=key, step=step)

    def end(self, summary: Mapping[str, float], fresh: Mapping[str, float], step: int, code: int) -> None:
        self.metrics(fresh, step)
        self._logger.finalize("failed" if code else "success")


def _has(client: Any, run: str) -> bool:
    """Whether a server has a run; it may be another one than before."""
    from mlflow.exceptions import MlflowException

    with suppress(MlflowException):
        return client.get_run(run) is not None
    return False
