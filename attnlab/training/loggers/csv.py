"""CSV files in a run's folder, by Lightning's CSVLogger: `csv/metrics.csv`, and `csv/hparams.yaml`."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter

from attnlab.training.loggers.labels import flat
from attnlab.training.loggers.mirror import Mirror


@final
@dataclass(frozen=True)
class Csv:
    """A row per step at which something was logged."""

    def logger(self, folder: Path, batch_tokens: int | None = None, **run: Any) -> Mirror:
        """Lightning's logger over it."""
        return Mirror("CSV", lambda: _Log(folder, run), batch_tokens)


class _Log:
    def __init__(self, folder: Path, run: Mapping[str, Any]) -> None:
        self._logger = CSVLogger(folder, name="csv", version="", flush_logs_every_n_steps=1)
        self._logger._experiment = _Writer(self._logger.log_dir)
        self._logger.log_hyperparams(flat(run))

    def last(self) -> dict[str, int]:
        path, found = Path(self._logger.log_dir, _Writer.NAME_METRICS_FILE), dict[str, int]()
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    found |= {name: int(row["step"]) for name, value in row.items() if value}
        return found

    def metrics(self, values: Mapping[str, float], step: int | None) -> None:
        self._logger.log_metrics(dict(values), step)

    def image(self, key: str, image: Any, step: int | None, caption: str) -> None:
        """There are none in a table."""

    def end(self, summary: Mapping[str, float], fresh: Mapping[str, float], step: int, code: int) -> None:
        if fresh:
            self.metrics(fresh, step)
        self._logger.finalize("failed" if code else "success")


class _Writer(ExperimentWriter):
    """Goes on where the file ends; Lightning's own deletes it. A row that a kill has cut short goes."""

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if path.exists():
            whole, newline, _ = path.read_bytes().rpartition(b"\n")
            path.write_bytes(whole + newline)
            self.metrics_keys = next(csv.reader([whole.decode().split("\n")[0]]), [])
            if not self.metrics_keys:
                path.unlink()
