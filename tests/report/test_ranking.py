"""What ranks the arms of a page that has many: other metrics, longer texts, equal bytes."""

from pathlib import Path

import pytest
from synthetic import World, experiment, provenance, write_runs

from attnlab import stats
from attnlab.report.answer import answer, arms_table, equal_bytes
from attnlab.report.build import build
from attnlab.report.pages.html import html
from attnlab.report.schema import Report, Word
from attnlab.report.tables import ranking

ARMS = ["mha", *(f"arm_{i}" for i in range(1, ranking.MANY + 1))]
EXTRA = {"val/accuracy": 0.5, "length/1": 4.0, "length/2": 4.1}


def report_of(folder: Path, arms: list[str]) -> Report:
    world = World(effects={arm: 0.01 * i for i, arm in enumerate(arms)}, extra=EXTRA)
    asked = experiment(world, claims=[], metrics=["val/accuracy"])
    return build(asked, write_runs(folder, world), None, provenance())


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_of(tmp_path_factory.mktemp("many"), ARMS)


def test_of_many_arms_every_metric_and_the_longest_text_are_columns(many: Report) -> None:
    accuracy, longest = ranking.columns(many)
    assert accuracy.label == "val/accuracy"
    assert {arm: cell.mean for arm, cell in accuracy.cells.items()} == dict.fromkeys(ARMS, 0.5)
    assert {arm: cell.mean for arm, cell in longest.cells.items()} == dict.fromkeys(ARMS, 4.1)
    header, rows = arms_table(many)
    assert header[3:5] == ["val/accuracy (nats)", "loss at 2 times the trained length (nats)"]
    assert all(len(row) == len(header) for row in rows)
    short, _ = arms_table(many, whole=False)
    assert "val/accuracy (nats)" not in short, "a slide has no room for them"


def test_of_few_arms_the_table_stays_as_it_is(tmp_path: Path) -> None:
    few = report_of(tmp_path, ARMS[:-1])
    assert ranking.columns(few) == [] == equal_bytes(few, answer(few))


def test_arms_of_equal_bytes_stand_together_with_their_distance_to_the_best(many: Report) -> None:
    [cache] = [panel for panel in many.tradeoff if panel.key == "kv_bytes_per_token"]
    kept = {"arm_3": 64.0, "arm_7": 64.0, "arm_5": 32.0}  # two keep half of the others' 128, and one alone
    points = [point.model_copy(update={"x": kept.get(point.arm, 128.0)}) for point in cache.points]
    many = many.model_copy(update={"tradeoff": [cache.model_copy(update={"points": points})]})
    rows = equal_bytes(many, answer(many))
    told_of = [row.arm for row in rows]
    assert told_of == ["mha", "arm_1", "arm_2", "arm_4", "arm_6", "arm_8", "arm_3", "arm_7"]
    values = {
        arm: {run.seed: run.metrics["val/loss"] for run in many.runs if run.arm == arm}
        for arm in ("arm_3", "arm_7")
    }
    expected = stats.paired([values["arm_7"][seed] - values["arm_3"][seed] for seed in values["arm_3"]])
    found = rows[-1].differs
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert rows[0].differs.mean == rows[6].differs.mean == 0
    assert "Who is ahead at equal bytes" in html(many)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (Word.BETTER_MORE, "better"), (Word.BETTER, "better"), (Word.WORSE_MORE, "worse"),
        (Word.WORSE, "worse"), (Word.EQUIVALENT, "equivalent"), (Word.NOT_WORSE, "non-inferior"),
        (Word.INCONCLUSIVE, "inconclusive"), (Word.NOT_COMPARABLE, None), (Word.LEAKING, None),
        (Word.EXPLORATORY, None), (Word.NO_RESULT, None),
    ],
)  # fmt: skip
def test_a_word_has_a_short_form(word: Word, said: str | None) -> None:
    assert ranking.STATES.get(word) == said
