"""What a run and its parent have to agree on that no shape of a tensor shows: the meaning of token ids."""

from collections.abc import Mapping
from typing import Any

from attnlab.errors import Refused


def refuse_other_vocabulary(
    parent: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], differ: str = ""
) -> None:
    """Refused, one line, where a parent's token ids mean other tokens than this run's, or may do so.

    Args:
        parent: the value of the key `parent`.
        theirs, ours: the data facts of both runs, as `Estimate.data` has them.
        differ: how the vocabularies differ, where both are known token by token.
    """
    before = theirs.get("vocabulary")
    now = ours.get("vocabulary")
    same_kind = all(theirs.get(key) == ours.get(key) for key in ("vocab_size", "unit"))
    if before == now and (now is not None or same_kind):  # a task of a user's own may have no vocabulary
        return
    instead = "use the same text and tokenizer, or set parent=null"
    if same_kind and before is None:  # from before runs had one: only the same data show the same ids
        if theirs.get("sha256") == ours.get("sha256"):
            return
        raise Refused(
            f"parent={parent}: it has no record of its vocabulary, and its data ({theirs.get('name')}) are "
            f"not this run's ({ours.get('name')}): train it again, or {instead}"
        )
    told = differ or f"{_tokens(theirs)}, this run has {_tokens(ours)}"
    raise Refused(f"parent={parent}: its vocabulary differs from this run's ({told}): {instead}")


def _tokens(facts: Mapping[str, Any]) -> str:
    """`68 tokens (char) of book`."""
    return f"{facts.get('vocab_size')} tokens ({facts.get('unit')}) of {facts.get('name')}"
