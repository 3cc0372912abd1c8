"""The study of docs/noise.md: its seeds are reserved, and its estimates follow their formulas."""

import math

import noise_sources
import numpy as np
import pytest
import seed_noise
import yaml

from attnlab.config import CONF
from attnlab.stats import find_detectable_effect

STEPS = (*seed_noise.EARLY_STEPS, seed_noise.STEPS)


def draw_losses(n_seeds, correlation, rng):
    """Losses of arms with equal variances; early and final differences have this correlation."""
    early = rng.normal(size=(3, n_seeds))
    final = correlation * early + np.sqrt(1 - correlation**2) * rng.normal(size=(3, n_seeds))
    return early, final


@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_experiment_uses_a_reserved_seed(path):
    experiment = yaml.safe_load(path.read_text("utf-8"))
    groups = [experiment, experiment.get("tune") or {}, experiment.get("compute_calibration") or {}]
    used = {seed for group in groups for seed in group.get("seeds") or []}
    assert not used & {*seed_noise.RESERVED_SEEDS}
    assert not used & {*noise_sources.CELL_SEEDS}


def test_gain_of_double_sampling_is_that_of_the_best_mix_of_long_and_short_pairs():
    r_squared, cost = 0.8, 0.1
    plain = 1.0  # variance times cost of plain pairs
    ratios = np.linspace(1, 40, 100_000)  # all pairs per long pair
    products = ((1 - r_squared) + r_squared / ratios) * (1 - cost + ratios * cost)
    assert seed_noise.compute_gain(r_squared, cost) == pytest.approx(plain / products.min(), rel=1e-6)
    assert seed_noise.compute_gain(0.3, 0.3) == seed_noise.compute_gain(0.1, 0.3) == 1.0


def test_double_sampling_gains_without_bias_what_the_formula_promises():
    early, final = draw_losses(4000, 0.9, np.random.default_rng(1))
    bias, error, gain = seed_noise.simulate_double_sampling(
        final, early, seed_noise.PAIRS[0], cost=0.1, n_long=40, n_all=160
    )
    r_squared = (
        np.corrcoef(*(seed_noise.subtract(each, seed_noise.PAIRS[0]) for each in (early, final)))[0, 1] ** 2
    )
    expected = 1 / ((1 - r_squared + r_squared / 4) * (1 - 0.1 + 4 * 0.1))
    assert abs(bias) < 4 * error
    assert gain == pytest.approx(expected, rel=0.1)


def test_a_covariate_of_noise_explains_nothing_and_a_copy_everything():
    rng = np.random.default_rng(2)
    response, other = rng.normal(size=(2, 20_000))
    assert seed_noise.fit_r_squared(response, other[None]) == pytest.approx(0.0, abs=0.001)
    assert seed_noise.fit_r_squared(response, 3 - 2 * response[None]) == pytest.approx(1.0)


def test_pooled_intervals_cover_and_are_shorter_where_variances_are_equal():
    _, final = draw_losses(2000, 0.0, np.random.default_rng(3))
    plain_coverage, plain_width, pooled_coverage, pooled_width = seed_noise.measure_intervals(
        final, seed_noise.PAIRS[0], 4
    )
    assert plain_coverage == pytest.approx(0.95, abs=0.01)
    assert pooled_coverage == pytest.approx(0.95, abs=0.01)
    assert plain_width / pooled_width == pytest.approx(seed_noise.compute_pooling_gain(4), rel=0.05)


def test_pooled_intervals_of_the_noisier_difference_cover_too_rarely():
    _, final = draw_losses(2000, 0.0, np.random.default_rng(4))
    final[1] *= 4  # gqa
    coverage = seed_noise.measure_intervals(final, ("gqa", "mha"), 8)[2]
    assert coverage < 0.93


def test_the_page_is_written_from_any_number_of_seeds(monkeypatch):
    monkeypatch.setattr(seed_noise, "BOOTSTRAPS", 20)
    rng = np.random.default_rng(5)
    losses = {step: rng.normal(1.7, 0.02, size=(3, 16)) for step in STEPS}
    page = seed_noise.format_page(losses, [])
    assert "Its data are seeds 7000 to 7063 (16 of 64 finished)" in page
    assert "No estimator of the same effect reaches it" in page
    assert "-0.0" not in page, "a minus sign, as in all tables"


def test_the_sources_show_components_truncations_and_detectable_effects():
    rows, columns = np.meshgrid([-3.0, -1.0, 1.0, 3.0], [-0.3, -0.1, 0.1, 0.3], indexing="ij")
    rest = 0.1 * np.array([[1, -1, -1, 1], [-1, 1, 1, -1], [1, -1, -1, 1], [-1, 1, 1, -1]])
    mha = np.full((4, 4), 1.7)
    values = {"mha": mha + rest, "gqa": mha + 0.25 + rows + columns + 2 * rest, "mqa": mha + columns}
    windows = {arm: (np.array([loss, 2 * loss]), np.array([1.0, 1.0])) for arm, loss in
               {"mha": 1.0, "gqa": 3.0, "mqa": 2.0}.items()}  # fmt: skip
    blocks = noise_sources.format_sources(values, windows, {"mha": 20.0, "gqa": 40.0, "mqa": 30.0})
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in "\n".join(blocks).splitlines()
        if line.startswith("|")
    }
    rest_variance = 16 * 0.1**2 / 9
    row_variance = 80 / 3 / 4 - rest_variance / 4
    column_variance = 0.8 / 3 / 4 - rest_variance / 4
    sd = math.sqrt(row_variance + column_variance + rest_variance)
    numbers = [math.sqrt(variance) for variance in (row_variance, column_variance, rest_variance)]
    assert cells["gqa − mha"][:5] == ["+0.2500", *(f"{number:.4f}" for number in (*numbers, sd))]
    assert cells["gqa − mha"][6] == f"{np.std([2, 4], ddof=1) / math.sqrt(2):.4f}"
    assert (
        "mha: the estimated variance of initialization and data order is negative, and shown as 0." in blocks
    )
    single = find_detectable_effect(8) * sd
    assert cells["8"][0] == f"{8 * 30 * 4 / 2 / 60:.1f}", "four arms of 30 s on two slots"
    assert cells["8"][1].startswith(f"{single:.4f} (")


def test_a_grid_with_a_missing_run_has_no_section(tmp_path):
    assert noise_sources.describe_sources(tmp_path) == []
