"""Variable binding: assignments in random order, some to variables that have a value, and the final values.

tokens    x1 v7 _ _ x0 v2 x1 v4 _ _ x0 x1
targets    .  . . .  .  .  .  . . . v2 v4

The last assignment counts. In `forgetting`, a key has at most two values, and all second ones come last.
Here, assignments to different variables alternate, and a variable may have many values.
"""

import torch

from attnlab.data.synthetic.sequence_layout import sample_permutations, shuffle_rows
from attnlab.data.synthetic_task import (
    SyntheticTask,
    check_whole_numbers,
    classify_distances,
    name_distance_classes,
)
from attnlab.data.task import IGNORE, Batch


class VariableBinding(SyntheticTask):
    """An assignment to each of `variables`, up to `overwrites` more, and a query of each at the end.

    Numbers of overwrites are equally likely, and so are the numbers of variables that they go to, so that
    some examples overwrite one variable many times. Blanks fill the window between assignments. Results are
    reported by the number of overwrites of the queried variable. Chance is 1 / values.
    """

    def __init__(self, length: int, variables: int, values: int, overwrites: int, val_windows: int) -> None:
        check_whole_numbers(1, variables=variables, overwrites=overwrites)
        check_whole_numbers(2, values=values)
        min_length = 2 * (variables + overwrites) + variables
        if type(length) is not int or length < min_length:
            raise ValueError(
                f"data.length={length} is too short: {variables} variables with {overwrites} overwrites, and"
                f" a query of each, take {min_length} tokens; raise data.length, or lower data.variables or"
                " data.overwrites"
            )
        self.variables = variables
        self.values = values
        self.overwrites = overwrites
        classes = [name.replace("distance", "overwrites") for name in name_distance_classes(overwrites)]
        super().__init__(
            [*(f"x{i}" for i in range(variables)), *(f"v{i}" for i in range(values)), "_"],
            ["overwrites/0", *classes], length, val_windows,
            name="variable_binding", variables=variables, values=values, overwrites=overwrites,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        blank = self.vocab_size - 1
        n_statements = (self.length - self.variables) // 2
        overwrites = torch.randint(self.overwrites + 1, (count, 1), generator=random)
        place = torch.arange(n_statements)
        n_overwritten = torch.randint(1, self.variables + 1, (count, 1), generator=random)
        choice = (torch.rand(count, n_statements, generator=random) * n_overwritten).long()
        again = sample_permutations(count, self.variables, random).gather(1, choice)
        variable = torch.where(place < self.variables, place, again)
        variable = variable.masked_fill(place >= self.variables + overwrites, blank)
        variable = shuffle_rows(variable, random)
        value = torch.randint(self.values, variable.shape, generator=random) + self.variables
        value = value.masked_fill(variable == blank, blank)
        assigns = variable[:, None] == torch.arange(self.variables)[:, None]  # row, variable, statement
        last = torch.where(assigns, place, -1).amax(2)
        queries = sample_permutations(count, self.variables, random)
        tokens = torch.full((count, self.length), blank)
        tokens[:, : 2 * n_statements] = torch.stack((variable, value), 2).flatten(1)
        tokens[:, -self.variables :] = queries
        targets = torch.full_like(tokens, IGNORE)
        targets[:, -self.variables :] = value.gather(1, last).gather(1, queries)
        n_overwrites = assigns.sum(2).gather(1, queries) - 1
        condition = torch.zeros_like(tokens)
        condition[:, -self.variables :] = torch.where(
            n_overwrites == 0, 0, classify_distances(n_overwrites.clamp(min=1)) + 1
        )
        return {"tokens": tokens, "targets": targets, "condition": condition}
