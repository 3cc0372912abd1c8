"""Pins cover the dependencies of pyproject.toml within their ranges, and install from any index."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from attnlab.data.corpora.code import PACKAGES

ROOT = Path(__file__).parents[1]
PINS = {
    canonicalize_name(pin.name): pin
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for pin in [Requirement(line)]
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("requirement", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_dependencies_are_pinned_within_their_ranges(requirement):
    requirement = Requirement(requirement)
    (pin,) = PINS[canonicalize_name(requirement.name)].specifier
    assert pin.operator == "=="
    assert requirement.specifier.contains(pin.version, prereleases=True)


def test_packages_of_the_code_corpus_are_pinned():
    assert not {canonicalize_name(name) for name in PACKAGES} - set(PINS)


def test_pins_apply_to_one_python_and_no_specific_torch_build():
    for pin in PINS.values():
        assert "+" not in str(pin.specifier)
        assert pin.url is None
        assert pin.marker is not None
        assert not pin.marker.evaluate({"python_version": "3.99"})
