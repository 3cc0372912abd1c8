"""A zoo to try the kit on: what strangers get wrong when they write a variant, and what is odd but right.

`planted()` are variants with one bug each, by a name in plain words: each makes an answer wrong, a decoding
unequal, a future visible, a training step useless or a count false. `sound()` keep every contract. Both give
functions that make the `Variant`, since composing one takes time.
"""

from collections.abc import Iterable

from .making import Make


def planted() -> dict[str, Make]:
    """Every planted bug."""
    from . import caches, counts, epilogues, heads, kernels, masks, mixers, positions, scores

    modules = (masks, heads, counts, kernels, caches, positions, scores, epilogues, mixers)
    return _merged(module.PLANTED for module in modules)


def sound() -> dict[str, Make]:
    """Every variant that is odd and right."""
    from . import sound_layers, sound_parts

    return _merged([sound_parts.SOUND, sound_layers.SOUND])


def _merged(zoos: Iterable[dict[str, Make]]) -> dict[str, Make]:
    together: dict[str, Make] = {}
    for zoo in zoos:
        twice = together.keys() & zoo
        assert not twice, f"two of one name: {', '.join(sorted(twice))}"
        together |= zoo
    return together
