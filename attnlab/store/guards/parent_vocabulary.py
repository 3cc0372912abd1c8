"""Agreement of a run and its parent on token ids, which no tensor shape reveals."""

from collections.abc import Mapping
from typing import Any

from attnlab.errors import InvalidConfig


def require_same_vocabulary(
    parent: str, parent_facts: Mapping[str, Any], run_facts: Mapping[str, Any], difference: str = ""
) -> None:
    """Check that the parent's token ids mean the same tokens as this run's.

    Args:
        parent: Value of the key `parent`.
        parent_facts: Data facts of the parent, as in `RunEstimate.data`.
        run_facts: Data facts of this run.
        difference: Difference of the vocabularies, if both are known token by token.
    """
    parent_vocabulary = parent_facts.get("vocabulary")
    run_vocabulary = run_facts.get("vocabulary")
    same_kind = all(parent_facts.get(key) == run_facts.get(key) for key in ("vocab_size", "unit"))
    if parent_vocabulary == run_vocabulary and (
        run_vocabulary is not None or same_kind
    ):  # a user-defined task may have no vocabulary
        return
    remedy = "use the same corpus and tokenizer, or set parent=null"
    if same_kind and parent_vocabulary is None:  # written by an old version: only equal data prove equal ids
        if parent_facts.get("sha256") == run_facts.get("sha256"):
            return
        raise InvalidConfig(
            f"parent={parent}: its vocabulary is not recorded, and its data ({parent_facts.get('name')}) "
            f"differ from this run's ({run_facts.get('name')}): train the parent again, or {remedy}"
        )
    summary = (
        difference or f"{_describe_vocabulary(parent_facts)}, this run has {_describe_vocabulary(run_facts)}"
    )
    raise InvalidConfig(f"parent={parent}: its vocabulary differs from this run's ({summary}): {remedy}")


def _describe_vocabulary(facts: Mapping[str, Any]) -> str:
    """Return text such as `68 tokens (char) of book`."""
    return f"{facts.get('vocab_size')} tokens ({facts.get('unit')}) of {facts.get('name')}"
