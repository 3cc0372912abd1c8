"""Mutants and valid variants, with which the conformance tests are tested.

`load_mutants()` gives variants with one bug each, keyed by a description. A bug makes an output wrong,
decoding unequal, the future visible, a training step useless or a count false. `load_valid_variants()` gives
unusual variants that keep every contract. Values are factories, since composition takes time.
"""

from collections.abc import Iterable

from .builders import VariantFactory


def load_mutants() -> dict[str, VariantFactory]:
    """Load the factories of all mutants."""
    from . import caches, conditional, counts, epilogues, heads, kernels, masks, mixers, positions, scores

    modules = (masks, heads, counts, kernels, caches, positions, scores, epilogues, mixers, conditional)
    return _merge_tables(module.MUTANTS for module in modules)


def load_valid_variants() -> dict[str, VariantFactory]:
    """Load the factories of all unusual but valid variants."""
    from . import conditional, valid_layers, valid_parts

    return _merge_tables(module.VALID_VARIANTS for module in (valid_parts, valid_layers, conditional))


def _merge_tables(tables: Iterable[dict[str, VariantFactory]]) -> dict[str, VariantFactory]:
    merged: dict[str, VariantFactory] = {}
    for table in tables:
        duplicates = merged.keys() & table
        assert not duplicates, f"two of one name: {', '.join(sorted(duplicates))}"
        merged |= table
    return merged
