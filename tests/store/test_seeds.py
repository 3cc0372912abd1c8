"""The numbers that every stored run was drawn with: literal, so that nothing can move them unnoticed."""

import pytest
import torch

from attnlab.data.task import generator
from attnlab.model.initial import named_generator
from attnlab.store.seeds import seed_of


@pytest.mark.parametrize(
    ("place", "seed"),
    [
        ((0, "embedding."), 10767507616057692236),
        ((7, "blocks.1.mixer.heads.qkv.k"), 82719681010976258),
        ((3, "step", 11), 12640857903132024550),
        ((3, "step", 11, 1), 262600222021914092),
    ],
)
def test_a_place_has_its_seed_for_ever(place, seed):
    assert seed_of(*place) == seed


def test_a_weight_is_drawn_from_the_seed_of_its_name():
    drawn = torch.rand(2, generator=named_generator(7, "blocks.1.mixer.heads.qkv.k"))
    assert drawn.tolist() == [0.7097643613815308, 0.39616185426712036]


@pytest.mark.parametrize(
    ("seed", "step", "drawn"),
    [
        (0, 0, [444660, 939651, 73996]),
        (7, 3, [962622, 677850, 582841]),
        ("validation", 0, [864692, 772332, 713448]),
    ],
)
def test_a_batch_is_drawn_from_the_seed_of_its_step(seed, step, drawn):
    assert torch.randint(0, 10**6, (3,), generator=generator(seed, step)).tolist() == drawn
