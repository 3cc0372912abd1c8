"""TensorBoard's files in a run's folder, by Lightning's TensorBoardLogger: `tensorboard --logdir runs`."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from attnlab.store.fingerprint import flatten
from attnlab.training.loggers.labels import flat, folders
from attnlab.training.loggers.mirror import Mirror


@final
@dataclass(frozen=True)
class TensorBoard:
    """Scalars, the maps as images, the config as hyper-parameters. ValueError where it is not installed."""

    def __post_init__(self) -> None:
        if find_spec("tensorboard") is None:
            raise ValueError("logger=tensorboard needs the package: pip install 'attnlab[tensorboard]'")

    def logger(self, folder: Path, batch_tokens: int | None = None, **run: Any) -> Mirror:
        """Lightning's logger over it."""
        return Mirror("TensorBoard", lambda: _Log(folder, run), batch_tokens)


class _Log:
    """What it shows is called as in W&B, by its folders: tensorboard/GROUP/ARM/seed=0."""

    def __init__(self, folder: Path, run: Mapping[str, Any]) -> None:
        from pytorch_lightning.loggers import TensorBoardLogger

        name = Path(*folders(run.get("group")), *folders(run["name"]))
        self._logger = TensorBoardLogger(
            folder / "tensorboard", name=str(name), version="", default_hp_metric=False
        )
        self._config = flat(run)
        self._before = self._read()
        self._logger.log_hyperparams(self._config)
        self._logger.experiment.flush()
        self._logger.save()

    def _read(self) -> dict[str, int]:
        """Of each scalar and image, the last step that the files have."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        if not Path(self._logger.log_dir).is_dir():
            return {}
        events = EventAccumulator(
            self._logger.log_dir, {"scalars": 0, "images": 1, "compressedHistograms": 1}
        )
        tags = events.Reload().Tags()
        kinds = {"scalars": events.Scalars, "images": events.Images}
        return {
            name: max(event.step for event in read(name))
            for kind, read in kinds.items()
            for name in tags[kind]
        }

    def last(self) -> dict[str, int]:
        return self._before

    def metrics(self, values: Mapping[str, float], step: int | None) -> None:
        self._logger.log_metrics(dict(values), step)
        self._logger.experiment.flush()  # a kill loses nothing that the run's checkpoint has

    def image(self, key: str, image: Any, step: int | None, caption: str) -> None:
        self._logger.experiment.add_image(key, image, step, dataformats="HW")
        self._logger.experiment.flush()

    def end(self, summary: Mapping[str, float], fresh: Mapping[str, float], step: int, code: int) -> None:
        from torch.utils.tensorboard.summary import hparams

        self.metrics(fresh, step)
        plain = {
            key: leaf if isinstance(leaf, bool | int | float | str) else str(leaf)
            for key, leaf in flatten(self._config)
        }
        for part in hparams(plain, dict(summary)) if summary else ():  # Lightning's would log them once more
            self._logger.experiment._get_file_writer().add_summary(part)
        self._logger.finalize("failed" if code else "success")
