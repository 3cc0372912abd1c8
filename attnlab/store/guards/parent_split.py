"""Agreement of a run and its parent on the split of their text."""

from collections.abc import Mapping
from typing import Any

from attnlab.errors import InvalidConfig


def require_same_split(parent: str, parent_facts: Mapping[str, Any], run_facts: Mapping[str, Any]) -> None:
    """Check that the parent was not trained on text that this run is validated on.

    Corpora of one name count as one text. Generated data have no split.

    Args:
        parent: Value of the key `parent`.
        parent_facts: Data facts of the parent, as in `RunEstimate.data`.
        run_facts: Data facts of this run.

    Raises:
        InvalidConfig: One line, if the parent's validation text differs or may differ.
    """
    keys = ("val_text",) if run_facts.get("val_text") else ("train_tokens", "val_tokens")
    if (
        not run_facts.get("train_tokens")
        or parent_facts.get("name") != run_facts.get("name")
        or parent_facts.get("sha256") == run_facts.get("sha256")
        or all(parent_facts.get(key) == run_facts.get(key) for key in keys)
    ):
        return
    parent_split, run_split = (
        f"{facts.get('train_tokens')} training and {facts.get('val_tokens')} validation tokens"
        for facts in (parent_facts, run_facts)
    )
    raise InvalidConfig(
        f"parent={parent}: its split of {run_facts.get('name')} ({parent_split}) differs from this run's "
        f"({run_split}), so it may have been trained on this run's validation text: use the same files and "
        "data.val_fraction, or set parent=null"
    )
