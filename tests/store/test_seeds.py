"""Seeds of all stored runs, as literal numbers, so that any change is noticed."""

import pytest
import torch

from attnlab.data.task import make_generator
from attnlab.model.initialization import make_named_generator
from attnlab.store.seeds import derive_seed


@pytest.mark.parametrize(
    ("path", "seed"),
    [
        ((0, "embedding."), 10767507616057692236),
        ((7, "blocks.1.mixer.heads.qkv.k"), 82719681010976258),
        ((3, "step", 11), 12640857903132024550),
        ((3, "step", 11, 1), 262600222021914092),
    ],
)
def test_derived_seeds_are_fixed(path, seed):
    assert derive_seed(*path) == seed


def test_a_weight_is_sampled_from_the_seed_of_its_name():
    sample = torch.rand(2, generator=make_named_generator(7, "blocks.1.mixer.heads.qkv.k"))
    assert sample.tolist() == [0.7097643613815308, 0.39616185426712036]


@pytest.mark.parametrize(
    ("seed", "step", "sample"),
    [
        (0, 0, [444660, 939651, 73996]),
        (7, 3, [962622, 677850, 582841]),
        ("validation", 0, [864692, 772332, 713448]),
    ],
)
def test_a_batch_is_sampled_from_the_seed_of_its_step(seed, step, sample):
    assert torch.randint(0, 10**6, (3,), generator=make_generator(seed, step)).tolist() == sample
