"""Text that training and validation share, if each has files or a split of its own."""

import sys

import numpy as np

from attnlab.data.corpora.duplicates import hash_lines

MIN_LINE_CHARS = 32  # shorter lines, such as headings, recur in unrelated texts


def reject_shared_text(training: str, validation: str, validation_key: str, training_key: str) -> None:
    """Reject a validation text that is a part of the training text, and print how many lines they share.

    Raises:
        ValueError: the training text contains the whole validation text.
    """
    if validation.strip() in training:
        raise ValueError(
            f"{validation_key}: the whole text is part of the training text ({training_key}), so its loss "
            "would not measure generalization: give another text"
        )
    shared, total = count_shared_lines(training, validation)
    if shared:
        print(
            f"warning: {validation_key}: {shared:,} of {total:,} distinct lines of at least {MIN_LINE_CHARS}"
            f" characters ({shared / total:.1%}) are in the training text too",
            file=sys.stderr,
            flush=True,
        )


def count_shared_lines(training: str, validation: str) -> tuple[int, int]:
    """Return how many distinct long lines of the validation text training shares, and their number."""
    training_lines, validation_lines = (
        hash_lines(
            "\n".join(line for line in text.split("\n") if len(line.strip()) >= MIN_LINE_CHARS).encode()
        )
        for text in (training, validation)
    )
    return len(np.intersect1d(training_lines, validation_lines)), len(validation_lines)
