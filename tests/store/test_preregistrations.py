"""Preregistration log: complete lines only, and deviations after results are known."""

import errno
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from disks import disk, fill  # noqa: F401 - fixtures

from attnlab.errors import InvalidConfig
from attnlab.store import file_names
from attnlab.store.experiment_schema import Experiment
from attnlab.store.guards import preregistrations
from attnlab.store.guards.preregistered_terms import describe_changes, extract_terms

ARMS = ("mha", "gqa", "mqa")
CLAIM = {"says": "no worse", "arm": "gqa", "is": "below", "threshold": 0.03}
FILE = {
    "name": "sharing", "size": "S", "arms": list(ARMS), "baseline": "mha", "seeds": [0, 1, 2],
    "controlled": ["params"], "metric": "val/loss", "margin": 0.03, "margin_reason": "small",
    "claims": [CLAIM],
}  # fmt: skip
RECIPES, TEXTS = {arm: f"config of {arm}" for arm in ARMS}, dict.fromkeys(ARMS, "a text")


def extract(recipes=RECIPES, corpora=TEXTS, **changes):
    return extract_terms(Experiment.model_validate(FILE | changes), recipes, corpora)


def preregister_arms(root, recipes=RECIPES, **changes):
    """Preregister with one run `<arm><seed>` per arm and seed."""
    experiment = Experiment.model_validate(FILE | changes)
    ids = {arm: {seed: f"{arm}{seed}" for seed in experiment.seeds} for arm in experiment.arms}
    return preregistrations.preregister(
        root, experiment.name, experiment, recipes, TEXTS, ids, "python -m attnlab +experiment=sharing"
    )


def write_results(root, *names, status="done"):
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "run.json").write_text(json.dumps({"id": name, "status": status}))


def read_log_bytes(root):
    return (root / file_names.PREREGISTRATION_LOG).read_bytes()


@pytest.mark.parametrize(
    ("changes", "description"),
    [
        ({"margin": 0.04}, "margin: first 0.03, now 0.04"),
        ({"metric": "val/best_loss", "claims": []},
         "metric: first val/loss, now val/best_loss; "
         "claims: no longer gqa against mha, val/loss: difference below 0.03"),
        ({"direction": "higher"}, "direction: first lower, now higher"),
        ({"baseline": "mqa", "claims": [{**CLAIM, "against": "mha"}]}, "baseline: first mha, now mqa"),
        ({"arms": ["mha", "gqa"]}, "arms: first gqa, mha, mqa, now gqa, mha"),
        ({"controlled": []}, "controlled: first parameters, now nothing"),
        ({"match": "params"}, "match: first none, now params"),
        ({"looks": [2, 3]}, "looks: first once, after all seeds, now 2, 3"),
        ({"looks": "anytime"}, "looks: first once, after all seeds, now anytime"),
        ({"seeds": list(range(8))}, "seeds: first 0 to 2, now 0 to 7"),
        ({"seeds": [0, 2]}, "seeds: first 0 to 2, now 0, 2"),
        ({"tune": {"lr": [0.1, 0.2], "seeds": [7, 8, 9]}},
         "tune: first nothing, now rates 0.1, 0.2 on seeds 7, 8, 9, extended by 3 at most, for 0.333 of the "
         "steps"),
        ({"claims": [{**CLAIM, "threshold": 0.04}]},
         "claims: first gqa against mha, val/loss: difference below 0.03, "
         "now gqa against mha, val/loss: difference below 0.04"),
        ({"claims": [CLAIM, {**CLAIM, "arm": "mqa", "compare": "ratio", "identity": True}]},
         "claims: now also mqa against mha, val/loss: ratio below 0.03, by construction"),
        ({"recipes": {**RECIPES, "gqa": "wider"}}, "arm gqa: changed training config"),
        ({"corpora": dict.fromkeys(ARMS, "a book")}, "arms gqa, mha, mqa: changed data"),
    ],
)  # fmt: skip
def test_decisive_changes_are_described_with_both_values(changes, description):
    assert "; ".join(describe_changes(extract(), extract(**changes))) == description


@pytest.mark.parametrize(
    "changes",
    [
        {"question": "Another?", "margin_reason": "another", "metrics": ["train/loss"]},
        {"claims": [{**CLAIM, "says": "as good", "source": "a paper", "reason": "another"}]},
        {"claims": [{**CLAIM, "against": "mha", "metric": "val/loss", "compare": "difference"}]},
        {"controlled": ["parameters"], "looks": None, "arms": list(reversed(ARMS)), "seeds": [2, 1, 0]},
    ],
)
def test_wording_reasons_order_and_defaults_are_not_decisive(changes):
    assert extract(**changes) == extract()


def test_a_tuned_learning_rate_is_no_change_and_another_rate_is():
    unknown, tuned, other = (extract(recipes={**RECIPES, "gqa": recipe}) for recipe in (None, "0.1", "0.2"))
    assert describe_changes(unknown, tuned) == describe_changes(tuned, unknown) == []
    assert describe_changes(tuned, other) == ["arm gqa: changed training config"]


def test_preregistering_again_appends_nothing(tmp_path):
    first = preregister_arms(tmp_path)
    before = read_log_bytes(tmp_path)
    assert preregister_arms(tmp_path) == first
    assert read_log_bytes(tmp_path) == before
    assert preregistrations.list_preregistrations(tmp_path) == [first]
    assert json.loads(before.split(b"\n")[0]) == first.to_dict()


def test_a_change_is_a_deviation_from_the_first_finished_pair_on(tmp_path):
    preregister_arms(tmp_path, claims=[{**CLAIM, "against": "mqa"}])
    write_results(tmp_path, "mha0", "gqa1", "mqa2")
    write_results(tmp_path, "gqa0", status="diverged")
    assert not preregister_arms(tmp_path, margin=0.04).deviations
    write_results(tmp_path, "mqa1")  # completes the claim's pair with gqa1; mha1 is missing
    late = preregister_arms(tmp_path, margin=0.05)
    [of_claim, *_] = late.earlier
    assert (of_claim.known_pairs, len(late.earlier)) == (1, 1), "the second has no such pair"
    assert late.deviations[0].startswith(f"deviation of {late.time}, after 1 pair of results was known under")
    assert late.deviations[0].endswith(
        f"{of_claim.time}: margin: first 0.03, now 0.05; claims: first gqa against mqa, val/loss: difference "
        "below 0.03, now gqa against mha, val/loss: difference below 0.03"
    )


def test_the_first_preregistration_stands_and_later_ones_stay_deviations(tmp_path):
    first = preregister_arms(tmp_path)
    write_results(tmp_path, *(f"{arm}{seed}" for arm in ARMS for seed in range(3)))
    late = preregister_arms(tmp_path, margin=0.04)
    assert late.deviations
    assert [one.known_pairs for one in late.earlier] == [6]
    assert preregister_arms(tmp_path) == first
    log = read_log_bytes(tmp_path)
    assert not preregister_arms(tmp_path).deviations
    assert preregister_arms(tmp_path, margin=0.04) == late
    assert read_log_bytes(tmp_path) == log


def test_another_size_or_name_is_another_experiment(tmp_path):
    preregister_arms(tmp_path)
    write_results(tmp_path, "mha0", "gqa0")
    assert not preregister_arms(tmp_path, margin=0.04, size="M").deviations
    assert not preregister_arms(tmp_path, margin=0.04, name="other").deviations
    assert preregister_arms(tmp_path, margin=0.04).deviations


def test_inline_comparisons_are_the_same_by_arms_size_and_data(tmp_path):
    def preregister_inline(name, corpora=TEXTS, is_inline=True, **changes):
        experiment = Experiment.model_validate(FILE | changes)
        ids = {arm: {seed: f"{arm}{seed}" for seed in experiment.seeds} for arm in experiment.arms}
        return preregistrations.preregister(
            tmp_path, name, experiment, RECIPES, corpora, ids, "compare", is_inline=is_inline
        )

    preregister_inline("first")
    write_results(tmp_path, "mha0", "gqa0")
    assert preregister_inline("second", margin=0.04).deviations
    assert not preregister_inline("second", dict.fromkeys(ARMS, "a book"), margin=0.05).deviations
    assert not preregister_inline("second", size="M", margin=0.06).deviations
    assert not preregister_inline("second", arms=["mha", "gqa"], margin=0.07).deviations
    assert not preregister_inline("a_file", is_inline=False, margin=0.08).deviations
    assert preregister_inline("first", is_inline=False, margin=0.09).deviations, "its file, another margin"


def test_more_seeds_are_no_new_preregistration_and_their_results_are_known(tmp_path):
    one = preregister_arms(tmp_path, looks="anytime", seeds=[0])
    assert preregister_arms(tmp_path, looks="anytime", seeds=[0, 1, 2, 3]) == one
    assert preregistrations.list_preregistrations(tmp_path) == [one]
    write_results(tmp_path, "mha3", "gqa3")
    assert [
        seen.known_pairs
        for seen in preregister_arms(tmp_path, looks="anytime", seeds=[0], margin=0.1).earlier
    ] == [1]


def test_results_before_the_first_preregistration_are_counted_and_no_deviation(tmp_path):
    write_results(tmp_path, "mha0", "gqa0", "mqa0", "mha1", "gqa1")
    one = preregister_arms(tmp_path)
    assert (one.known_pairs, one.pairs, one.deviations) == (3, 6, [])


def test_results_stay_known_after_their_runs_are_removed_or_retrained(tmp_path):
    preregistration = preregister_arms(tmp_path)
    write_results(tmp_path, "mha0", "gqa0")
    (tmp_path / "mha0" / "run.json").rename(tmp_path / "mha0" / "before.json")
    preregistrations.record_known_pairs(tmp_path, preregistration)
    shutil.rmtree(tmp_path / "gqa0")
    log = read_log_bytes(tmp_path)
    preregistrations.record_known_pairs(tmp_path, preregistration)
    assert read_log_bytes(tmp_path) == log, "nothing new, no line"
    assert [seen.known_pairs for seen in preregister_arms(tmp_path, margin=0.04).earlier] == [1]


def test_truncated_foreign_and_edited_lines_are_skipped_and_kept(tmp_path):
    first = preregister_arms(tmp_path)
    path, before = tmp_path / file_names.PREREGISTRATION_LOG, read_log_bytes(tmp_path)
    edited = before.split(b"\n")[0].replace(b'"margin": 0.03', b'"margin": 0.04')
    damaged_log = before + b"\0\0\n[1]\n7\n\xff\n{}\n" + edited + b'\n{"hash": "cut sho'
    path.write_bytes(damaged_log)
    late = preregister_arms(tmp_path, margin=0.05)
    assert read_log_bytes(tmp_path).startswith(damaged_log + b'\n{"hash": ')
    assert read_log_bytes(tmp_path).endswith(b"}\n")
    assert preregistrations.list_preregistrations(tmp_path) == [first, late]
    assert preregistrations.read_log(tmp_path).broken_lines == [3, 4, 5, 6, 7, 8, 9]


def test_concurrent_writers_append_complete_lines(tmp_path):
    script = (
        "import sys; sys.path[:0] = sys.argv[1:3]; from pathlib import Path; "
        "from test_preregistrations import preregister_arms; "
        "[preregister_arms(Path(sys.argv[3]), margin=float(i)) for i in range(20)]"
    )
    paths = [str(Path(preregistrations.__file__).parents[3]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(Path(__file__).parents[1])])}
    others = [
        subprocess.Popen([sys.executable, "-c", script, *paths, str(tmp_path)], env=environment)
        for _ in range(2)
    ]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda i: preregister_arms(tmp_path, margin=float(i)), range(20, 40)))
    assert [one.wait(timeout=60) for one in others] == [0, 0]
    read = preregistrations.read_log(tmp_path)
    assert not read.broken_lines
    assert sorted(one.content.margin for one in read.preregistrations.values()) == list(range(40))
    assert len(read_log_bytes(tmp_path).splitlines()) == 80, (
        "one line per preregistration and one for its runs"
    )


def test_a_full_disk_is_one_line_and_the_log_stays(disk, fill):  # noqa: F811
    root = disk / "runs"
    first = preregister_arms(root)
    before = read_log_bytes(root)
    balloon = fill(0)
    with pytest.raises(
        InvalidConfig, match=r"declarations\.jsonl: the preregistration cannot .*No space left"
    ) as refused:
        [preregister_arms(root, margin=float(i)) for i in range(100)]  # until the last block is full
    assert "\n" not in str(refused.value)
    assert read_log_bytes(root).startswith(before)
    balloon.unlink()
    late = preregister_arms(root, margin=0.5)
    assert {first.hash, late.hash} <= {one.hash for one in preregistrations.list_preregistrations(root)}


@pytest.mark.parametrize("kind", ["folder", "pipe", "read-only"])
def test_an_unwritable_log_is_rejected_first(tmp_path, monkeypatch, kind):
    path = tmp_path / file_names.PREREGISTRATION_LOG
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        opened = Path.open

        def open_read_only(self, mode="r", *rest, **more):
            if self == path and set(mode) & set("wa+"):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
            return opened(self, mode, *rest, **more)

        monkeypatch.setattr(Path, "open", open_read_only)
    for attempt in (
        lambda: preregistrations.require_writable_log(tmp_path),
        lambda: preregister_arms(tmp_path),
    ):
        with pytest.raises(InvalidConfig, match=r"declarations\.jsonl") as refused:
            attempt()
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("*/run.json"))


COMPUTE_MARGIN = {"margin": {"training": "5 %"}, "compute_calibration": {"seeds": [200, 201]}}


def test_a_margin_of_compute_is_logged_as_written_and_as_a_number_once_calibrated():
    experiment = Experiment.model_validate(
        FILE
        | COMPUTE_MARGIN
        | {"claims": [{**CLAIM, "threshold": "margin"}, {**CLAIM, "threshold": "-margin"}]}
    )
    before, after, other = (extract_terms(experiment, RECIPES, TEXTS, slope) for slope in (None, 0.25, 0.3))
    assert after.to_dict()["margin"] == {"training": 0.05, "at_most": None}
    assert {claim["threshold"] for claim in after.claims} == {"margin", "-margin"}
    assert (before.nats, after.nats) == ({"5 % of training": None}, {"5 % of training": 0.0185})
    assert describe_changes(before, after) == [], "the calibration is no change"
    assert describe_changes(after, other) == ["5 % of training: first 0.0185 nats, now 0.0222"]
    assert describe_changes(extract(), extract(**COMPUTE_MARGIN)) == [
        "margin: first 0.03, now 5 % of training"
    ]
    share = extract(claims=[{**CLAIM, "threshold": {"training": "2 %"}}], **COMPUTE_MARGIN)
    [_, line] = describe_changes(extract(), share)
    assert line.endswith("now gqa against mha, val/loss: difference below 2 % of training")


def test_other_calibration_runs_are_a_change_only_if_the_margin_changes():
    more = COMPUTE_MARGIN | {"compute_calibration": {"seeds": [200, 201, 202]}}
    ours, theirs = (Experiment.model_validate(FILE | one) for one in (COMPUTE_MARGIN, more))
    assert (
        describe_changes(
            extract_terms(ours, RECIPES, TEXTS, 0.25), extract_terms(theirs, RECIPES, TEXTS, 0.2501)
        )
        == []
    )
    assert describe_changes(
        extract_terms(ours, RECIPES, TEXTS, 0.25), extract_terms(theirs, RECIPES, TEXTS, 0.26)
    )


def test_a_margin_changed_by_its_calibration_after_results_is_a_deviation(tmp_path):
    experiment = Experiment.model_validate(FILE | COMPUTE_MARGIN)
    ids = {arm: {seed: f"{arm}{seed}" for seed in experiment.seeds} for arm in experiment.arms}

    def preregister_with(slope):
        return preregistrations.preregister(
            tmp_path, experiment.name, experiment, RECIPES, TEXTS, ids, "a command", slope
        )

    assert preregister_with(0.25).deviations == []
    write_results(tmp_path, "mha0", "gqa0")
    [line] = preregister_with(0.3).deviations
    assert "5 % of training: first 0.0185 nats, now 0.0222" in line


def test_without_a_compute_calibration_the_format_is_unchanged():
    assert not {"compute_calibration", "nats"} & extract().to_dict().keys()
    number = extract(claims=[{**CLAIM, "threshold": "margin"}])
    assert number == extract(), "`margin` stands for the number"
