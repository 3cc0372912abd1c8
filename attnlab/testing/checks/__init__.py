"""Checks of attention as a black box, for attnlab's variants and for modules of other projects.

A check takes a subject and the batch and length of its input; its docstring is the statement that it tests.
It returns the number that it measured with its unit, raises `CheckFailed`, or raises `CheckSkipped` if it
cannot apply.
"""

from collections.abc import Callable

from attnlab.testing.checks.deviation import Measured
from attnlab.testing.checks.numerics import (
    check_determinism,
    check_dtypes,
    check_random_state,
    check_state,
    check_strides,
)
from attnlab.testing.checks.sequences import check_batch, check_cache, check_left_padding, check_right_padding
from attnlab.testing.checks.subject import Subject
from attnlab.testing.checks.training import check_gradients, check_parameters, check_training_mode
from attnlab.testing.checks.visibility import check_causality, check_context

Check = Callable[[Subject, int, int], Measured]  # of subject, batch and length

# Rows and tokens of the inputs: multiples of tiles, one token more, more rows than a group.
SIZES: dict[Check, tuple[tuple[int, int], ...]] = {
    check_causality: ((3, 2), (3, 7), (3, 23), (2, 64), (1, 65), (1, 128), (1, 129), (1, 257), (1, 300)),
    check_context: ((3, 2),),
    check_cache: ((3, 23), (1, 23), (6, 23), (1, 300)),
    check_left_padding: ((3, 23), (1, 23), (3, 131)),
    check_right_padding: ((3, 23), (1, 23), (3, 128)),
    check_batch: ((3, 23), (34, 23), (3, 129)),
    check_training_mode: ((3, 23), (1, 129)),
    check_determinism: ((3, 23),),
    check_random_state: ((3, 23), (1, 1)),
    check_dtypes: ((3, 23), (1, 320)),
    check_strides: ((3, 23), (2, 129)),
    check_gradients: ((3, 23), (1, 129)),
    check_parameters: ((3, 23),),
    check_state: ((3, 23), (1, 1)),
}
CHECKS = tuple(SIZES)
