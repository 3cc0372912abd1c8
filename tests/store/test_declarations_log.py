"""What was declared is on record, whole lines only; what changed once results were known is told by name."""

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

from attnlab.errors import Refused
from attnlab.store.declarations import Experiment
from attnlab.store.guards import declared, marks
from attnlab.store.guards.terms import changed, terms

ARMS = ("mha", "gqa", "mqa")
CLAIM = {"says": "no worse", "arm": "gqa", "is": "below", "threshold": 0.03}
FILE = {
    "name": "sharing", "size": "S", "arms": list(ARMS), "baseline": "mha", "seeds": [0, 1, 2],
    "held": ["params"], "metric": "val/loss", "margin": 0.03, "margin_reason": "small", "claims": [CLAIM],
}  # fmt: skip
RECIPES, TEXTS = {arm: f"config of {arm}" for arm in ARMS}, dict.fromkeys(ARMS, "a text")


def decides(recipes=RECIPES, texts=TEXTS, **changes):
    return terms(Experiment.model_validate(FILE | changes), recipes, texts)


def declare(root, recipes=RECIPES, **changes):
    """Declared, with a run `<arm><seed>` for each."""
    experiment = Experiment.model_validate(FILE | changes)
    ids = {arm: {seed: f"{arm}{seed}" for seed in experiment.seeds} for arm in experiment.arms}
    return declared.declare(
        root, experiment.name, experiment, recipes, TEXTS, ids, "python -m attnlab +experiment=sharing"
    )


def finish(root, *names, status="done"):
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "run.json").write_text(json.dumps({"id": name, "status": status}))


def log(root):
    return (root / marks.LOG).read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"margin": 0.04}, "margin: first 0.03, now 0.04"),
        ({"metric": "val/best_loss", "claims": []},
         "metric: first val/loss, now val/best_loss; "
         "claims: no longer gqa against mha, val/loss: difference below 0.03"),
        ({"direction": "higher"}, "direction: first lower, now higher"),
        ({"baseline": "mqa", "claims": [{**CLAIM, "against": "mha"}]}, "baseline: first mha, now mqa"),
        ({"arms": ["mha", "gqa"]}, "arms: first gqa, mha, mqa, now gqa, mha"),
        ({"held": []}, "held: first parameters, now nothing"),
        ({"match": "params"}, "match: first none, now params"),
        ({"looks": [2, 3]}, "looks: first once, after all seeds, now 2, 3"),
        ({"looks": "anytime"}, "looks: first once, after all seeds, now anytime"),
        ({"seeds": list(range(8))}, "seeds: first 0-2, now 0-7"),
        ({"seeds": [0, 2]}, "seeds: first 0-2, now 0, 2"),
        ({"tune": {"lr": [0.1, 0.2], "seeds": [7, 8, 9]}},
         "tune: first nothing, now rates 0.1, 0.2 on seeds 7, 8, 9, widened by 3 at most, for 0.333 of the "
         "steps"),
        ({"claims": [{**CLAIM, "threshold": 0.04}]},
         "claims: first gqa against mha, val/loss: difference below 0.03, "
         "now gqa against mha, val/loss: difference below 0.04"),
        ({"claims": [CLAIM, {**CLAIM, "arm": "mqa", "compare": "ratio", "identity": True}]},
         "claims: now also mqa against mha, val/loss: ratio below 0.03, by construction"),
        ({"recipes": {**RECIPES, "gqa": "wider"}}, "arm gqa: another recipe"),
        ({"texts": dict.fromkeys(ARMS, "a book")}, "arms gqa, mha, mqa: other data"),
    ],
)  # fmt: skip
def test_what_decides_otherwise_is_named_with_both_values(changes, said):
    assert "; ".join(changed(decides(), decides(**changes))) == said


@pytest.mark.parametrize(
    "changes",
    [
        {"question": "Another?", "margin_reason": "another", "metrics": ["train/loss"]},
        {"claims": [{**CLAIM, "says": "as good", "source": "a paper", "reason": "another"}]},
        {"claims": [{**CLAIM, "against": "mha", "metric": "val/loss", "compare": "difference"}]},
        {"held": ["parameters"], "looks": None, "arms": list(reversed(ARMS)), "seeds": [2, 1, 0]},
    ],
)
def test_words_reasons_order_and_what_is_filled_in_anyway_decide_nothing(changes):
    assert decides(**changes) == decides()


def test_that_a_learning_rate_was_found_is_no_change_and_another_one_is():
    unknown, found, other = (decides(recipes={**RECIPES, "gqa": recipe}) for recipe in (None, "0.1", "0.2"))
    assert changed(unknown, found) == changed(found, unknown) == []
    assert changed(found, other) == ["arm gqa: another recipe"]


def test_the_same_again_appends_nothing_and_gives_the_entry_that_stands(tmp_path):
    first = declare(tmp_path)
    before = log(tmp_path)
    assert declare(tmp_path) == first
    assert log(tmp_path) == before
    assert declared.entries(tmp_path) == [first]
    assert json.loads(before.split(b"\n")[0]) == first.plain()


def test_a_change_counts_from_the_first_pair_that_is_finished_at_one_seed(tmp_path):
    declare(tmp_path, claims=[{**CLAIM, "against": "mqa"}])
    finish(tmp_path, "mha0", "gqa1", "mqa2")
    finish(tmp_path, "gqa0", status="diverged")
    assert not declare(tmp_path, margin=0.04).departures
    finish(tmp_path, "mqa1")  # beside gqa1, of which the claim says something; mha1 is not there
    late = declare(tmp_path, margin=0.05)
    [of_claim, *_] = late.after
    assert (of_claim.known, len(late.after)) == (1, 1), "the second asked for no such pair"
    assert late.departures[0].startswith(
        f"on {late.time} this was changed, after 1 pair of results was known"
    )
    assert late.departures[0].endswith(
        f"{of_claim.time}: margin: first 0.03, now 0.05; claims: first gqa against mqa, val/loss: difference "
        "below 0.03, now gqa against mha, val/loss: difference below 0.03"
    )


def test_what_was_declared_first_keeps_its_standing_and_what_came_after_results_never_gets_it(tmp_path):
    first = declare(tmp_path)
    finish(tmp_path, *(f"{arm}{seed}" for arm in ARMS for seed in range(3)))
    late = declare(tmp_path, margin=0.04)
    assert late.departures
    assert [one.known for one in late.after] == [6]
    assert declare(tmp_path) == first
    told = log(tmp_path)
    assert not declare(tmp_path).departures
    assert declare(tmp_path, margin=0.04) == late
    assert log(tmp_path) == told


def test_another_size_or_name_is_another_question(tmp_path):
    declare(tmp_path)
    finish(tmp_path, "mha0", "gqa0")
    assert not declare(tmp_path, margin=0.04, size="M").departures
    assert not declare(tmp_path, margin=0.04, name="other").departures
    assert declare(tmp_path, margin=0.04).departures


def test_more_seeds_at_any_time_are_no_new_declaration_and_their_results_are_known(tmp_path):
    one = declare(tmp_path, looks="anytime", seeds=[0])
    assert declare(tmp_path, looks="anytime", seeds=[0, 1, 2, 3]) == one
    assert declared.entries(tmp_path) == [one]
    finish(tmp_path, "mha3", "gqa3")
    assert [seen.known for seen in declare(tmp_path, looks="anytime", seeds=[0], margin=0.1).after] == [1]


def test_what_was_finished_before_the_first_declaration_is_told_and_is_no_departure(tmp_path):
    finish(tmp_path, "mha0", "gqa0", "mqa0", "mha1", "gqa1")
    one = declare(tmp_path)
    assert (one.known, one.pairs, one.departures) == (3, 6, [])


def test_results_stay_known_when_their_runs_are_gone_or_trained_again(tmp_path):
    one = declare(tmp_path)
    finish(tmp_path, "mha0", "gqa0")
    (tmp_path / "mha0" / "run.json").rename(tmp_path / "mha0" / "before.json")
    declared.keep_known(tmp_path, one)
    shutil.rmtree(tmp_path / "gqa0")
    told = log(tmp_path)
    declared.keep_known(tmp_path, one)
    assert log(tmp_path) == told, "no news, no line"
    assert [seen.known for seen in declare(tmp_path, margin=0.04).after] == [1]


def test_cut_foreign_and_edited_lines_are_passed_over_and_nothing_is_lost(tmp_path):
    first = declare(tmp_path)
    path, before = tmp_path / marks.LOG, log(tmp_path)
    edited = before.split(b"\n")[0].replace(b'"margin": 0.03', b'"margin": 0.04')
    whole = before + b"\0\0\n[1]\n7\n\xff\n{}\n" + edited + b'\n{"hash": "cut sho'
    path.write_bytes(whole)
    late = declare(tmp_path, margin=0.05)
    assert log(tmp_path).startswith(whole + b'\n{"hash": ')
    assert log(tmp_path).endswith(b"}\n")
    assert declared.entries(tmp_path) == [first, late]
    assert declared.read(tmp_path).broken == [3, 4, 5, 6, 7, 8, 9]


def test_lines_of_many_threads_and_processes_are_whole(tmp_path):
    script = (
        "import sys; sys.path[:0] = sys.argv[1:3]; from pathlib import Path; "
        "from test_declarations_log import declare; "
        "[declare(Path(sys.argv[3]), margin=float(i)) for i in range(20)]"
    )
    paths = [str(Path(declared.__file__).parents[3]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(Path(__file__).parents[1])])}
    others = [
        subprocess.Popen([sys.executable, "-c", script, *paths, str(tmp_path)], env=environment)
        for _ in range(2)
    ]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda i: declare(tmp_path, margin=float(i)), range(20, 40)))
    assert [one.wait(timeout=60) for one in others] == [0, 0]
    read = declared.read(tmp_path)
    assert not read.broken
    assert sorted(one.content.margin for one in read.declared.values()) == list(range(40))
    assert len(log(tmp_path).splitlines()) == 80, "each declared once, and its runs once"


def test_a_disk_without_room_is_one_line_and_what_was_there_stays(disk, fill):  # noqa: F811
    root = disk / "runs"
    first = declare(root)
    before = log(root)
    balloon = fill(0)
    with pytest.raises(Refused, match=r"declarations\.jsonl: what is declared .*No space left") as refused:
        [declare(root, margin=float(i)) for i in range(100)]  # until the last block of the log is full
    assert "\n" not in str(refused.value)
    assert log(root).startswith(before)
    balloon.unlink()
    late = declare(root, margin=0.5)
    assert {first.hash, late.hash} <= {one.hash for one in declared.entries(root)}


@pytest.mark.parametrize("what", ["folder", "pipe", "read-only"])
def test_a_log_that_cannot_be_written_is_refused_before_anything(tmp_path, monkeypatch, what):
    path = tmp_path / marks.LOG
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        opened = Path.open

        def refusing(self, mode="r", *rest, **more):
            if self == path and set(mode) & set("wa+"):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
            return opened(self, mode, *rest, **more)

        monkeypatch.setattr(Path, "open", refusing)
    for attempt in (lambda: declared.refuse_unwritable(tmp_path), lambda: declare(tmp_path)):
        with pytest.raises(Refused, match=r"declarations\.jsonl") as refused:
            attempt()
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("*/run.json"))


IN_TRAINING = {"margin": {"training": "5 %"}, "exchange": {"seeds": [200, 201]}}


def test_a_margin_in_training_is_on_record_as_declared_and_as_a_number_once_that_is_known():
    experiment = Experiment.model_validate(
        FILE | IN_TRAINING | {"claims": [{**CLAIM, "threshold": "margin"}, {**CLAIM, "threshold": "-margin"}]}
    )
    before, after, other = (terms(experiment, RECIPES, TEXTS, slope) for slope in (None, 0.25, 0.3))
    assert after.plain()["margin"] == {"training": 0.05, "at_most": None}
    assert {claim["threshold"] for claim in after.claims} == {"margin", "-margin"}
    assert (before.nats, after.nats) == ({"5 % of training": None}, {"5 % of training": 0.0185})
    assert changed(before, after) == [], "that it was found is no change"
    assert changed(after, other) == ["5 % of training: first 0.0185 nats, now 0.0222"]
    assert changed(decides(), decides(**IN_TRAINING)) == ["margin: first 0.03, now 5 % of training"]
    share = decides(claims=[{**CLAIM, "threshold": {"training": "2 %"}}], **IN_TRAINING)
    [_, line] = changed(decides(), share)
    assert line.endswith("now gqa against mha, val/loss: difference below 2 % of training")


def test_other_exchange_runs_are_a_change_only_where_the_margin_is_another():
    more = IN_TRAINING | {"exchange": {"seeds": [200, 201, 202]}}
    ours, theirs = (Experiment.model_validate(FILE | one) for one in (IN_TRAINING, more))
    assert changed(terms(ours, RECIPES, TEXTS, 0.25), terms(theirs, RECIPES, TEXTS, 0.2501)) == []
    assert changed(terms(ours, RECIPES, TEXTS, 0.25), terms(theirs, RECIPES, TEXTS, 0.26))


def test_a_margin_that_changed_with_its_exchange_after_results_is_told(tmp_path):
    experiment = Experiment.model_validate(FILE | IN_TRAINING)
    ids = {arm: {seed: f"{arm}{seed}" for seed in experiment.seeds} for arm in experiment.arms}

    def put(slope):
        return declared.declare(
            tmp_path, experiment.name, experiment, RECIPES, TEXTS, ids, "a command", slope
        )

    assert put(0.25).departures == []
    finish(tmp_path, "mha0", "gqa0")
    [line] = put(0.3).departures
    assert "5 % of training: first 0.0185 nats, now 0.0222" in line


def test_without_an_exchange_a_declaration_is_what_it_was_before_there_were_any():
    assert not {"exchange", "nats"} & decides().plain().keys()
    number = decides(claims=[{**CLAIM, "threshold": "margin"}])
    assert number == decides(), "the margin, written as such, is the number that it is"
