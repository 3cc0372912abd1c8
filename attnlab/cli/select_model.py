"""Selection of a trained model by the keys of a verb.

A model is a run (run=ID in the run directory runs=, or experiment=NAME arm=NAME seed=N) or a folder
(checkpoint=FOLDER). A checkpoint folder is a run's folder, its model.safetensors, or a local Hugging Face
folder with its tokenizer.json.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.cli import find_run
from attnlab.cli.kv_args import parse_unicode
from attnlab.errors import InvalidConfig
from attnlab.store import remote
from attnlab.store.guards.inputs import reject_special_files
from attnlab.sweep.slow_notice import notify_if_slow
from attnlab.training import trained_model
from attnlab.training.trained_model import TrainedModel


@notify_if_slow("loading the model")
def load_selected_model(arguments: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainedModel:
    """Load the model that `arguments` select.

    Args:
        arguments: `run` (in the run directory `runs`), `checkpoint`, or `experiment` with `arm` and `seed`.
        overrides: choose among several runs of an experiment, as in size=S.

    Raises:
        InvalidConfig: the model cannot be found or read.
    """
    if "checkpoint" not in arguments:
        return trained_model.load_run(find_selected_run(arguments, overrides))
    try:
        folder = Path(parse_unicode(arguments["checkpoint"]))
    except ValueError as error:
        raise InvalidConfig(f"checkpoint={arguments['checkpoint']}: {error}, or rename the folder") from None
    folder = folder.parent if folder.name == "model.safetensors" else folder
    reject_special_files("checkpoint", folder, recursive=True)
    if (folder / "spec.json").is_file():
        return trained_model.load_run(folder)
    if (folder / "config.json").is_file():
        return trained_model.load_hugging_face(folder)
    raise InvalidConfig(
        f"checkpoint={folder} has neither spec.json (run directory) nor config.json (Hugging Face "
        "folder): give the folder of a model"
    )


def find_selected_run(arguments: Mapping[str, Any], overrides: Sequence[str] = ()) -> Path:
    """Find the folder of the run that `run`, or `experiment` with `arm` and `seed`, select.

    Raises:
        InvalidConfig: no run matches, or several do.
    """
    store = remote.open_store(arguments["runs"], None, writable=False)
    if "experiment" in arguments:
        return find_run.find_experiment_run({**arguments, "runs": str(store)}, overrides)
    return trained_model.find_run_folder(store, arguments["run"])
