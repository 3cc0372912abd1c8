"""The pinned set: all that pyproject.toml asks for, within its ranges, installable from any index."""

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


@pytest.mark.parametrize("wanted", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_what_the_project_asks_for_is_pinned_within_its_range(wanted):
    wanted = Requirement(wanted)
    (exactly,) = PINS[canonicalize_name(wanted.name)].specifier
    assert exactly.operator == "=="
    assert wanted.specifier.contains(exactly.version, prereleases=True)


def test_the_packages_of_the_corpus_code_are_pinned_so_that_two_environments_have_the_same():
    assert not {canonicalize_name(name) for name in PACKAGES} - set(PINS)


def test_pins_bind_one_python_and_no_build_of_torch():
    for pin in PINS.values():
        assert "+" not in str(pin.specifier)
        assert pin.url is None
        assert pin.marker is not None
        assert not pin.marker.evaluate({"python_version": "3.99"})
