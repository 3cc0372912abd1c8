"""`claims` runs again what the references found, and fails where a verdict is another now."""

import json
from pathlib import Path

import pytest

from attnlab.cli.commands import parse
from attnlab.cli.verbs import claims
from attnlab.errors import Refused
from attnlab.report.schema import Place, Report, Verdict, load
from attnlab.store.declarations import RELATIONS
from attnlab.store.schema import Budget

REFERENCE = Path(__file__).parents[2] / "reports" / "reference"
MADE = load(REFERENCE / "kv_cache_bytes" / "report.json")  # what tests change
EXCHANGE = load(REFERENCE / "gqa_vs_mha" / "report.json").exchange


def claim(says="it holds", verdict="SUPPORTED", exact=True, **more):
    found = MADE.verdict.claims[0]
    decision = found.decision.model_copy(update={"exact": exact})
    known = {"says": says, "verdict": Verdict(verdict), "basis": "exact" if exact else "t"}
    known |= {"decision": decision, "relation": RELATIONS["below"], "threshold": 0.5}
    return found.model_copy(update=known | more)


def below(threshold, **more):
    return claim(exact=False, relation=RELATIONS["below"], threshold=threshold, **more)


def above(threshold, **more):
    return claim(exact=False, relation=RELATIONS["above"], threshold=threshold, **more)


def report_of(*claims, size="S", name="one", seconds=(), **more) -> Report:
    tokens = Budget(tokens=1000)
    runs = [MADE.runs[0].model_copy(update={"seconds": each, "budget": tokens}) for each in seconds]
    experiment = MADE.experiment.model_copy(update={"name": name, "size": size})
    verdict = MADE.verdict.model_copy(update={"claims": list(claims)})
    return MADE.model_copy(update={"experiment": experiment, "verdict": verdict, "runs": runs} | more)


def put(folder: Path, *claims, name=None, **more) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    report = report_of(*claims, name=folder.name if name is None else name, **more)
    (folder / "report.json").write_text(json.dumps(report.plain()))


class Runs:
    """Runs nothing: writes the report that is planned for an experiment, and remembers what it was asked."""

    def __init__(self, **planned):
        self.planned, self.asked = planned, []

    def __call__(self, overrides):
        given = dict(word.lstrip("+").split("=", 1) for word in overrides)
        self.asked.append(given)
        for folder, made in self.planned.items():
            if folder.split("@")[0] == given["experiment"]:
                put(Path(given["paths.reports"]) / folder, made, name=given["experiment"])
        return 0


def again(runs, *line):
    return claims.main(parse("claims", [str(word) for word in line]), runs)


def test_all_is_well_where_all_still_hold(tmp_path, capsys):
    put(tmp_path / "reference" / "one", claim())
    runs = Runs(one=claim())
    assert again(runs, tmp_path / "reference", "logger=none") == 0
    assert runs.asked[0]["size"] == "S"
    assert runs.asked[0]["logger"] == "none"
    assert "1 of 1 claims hold" in capsys.readouterr().out


def test_a_claim_that_fell_fails_the_command_by_name(tmp_path, capsys):
    for name in ("one", "two"):
        put(tmp_path / "reference" / name, claim())
    assert again(Runs(one=claim(), two=claim(verdict="REFUTED")), tmp_path / "reference") == 1
    out = capsys.readouterr().out
    assert "two: was SUPPORTED, is REFUTED: it holds" in out
    assert again(Runs(one=claim(), two=claim(verdict="REFUTED")), tmp_path / "reference", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "hold": 1, "claims": 2, "experiments": 2, "lost": ["two: was SUPPORTED, is REFUTED: it holds"],
        "left": [],
    }  # fmt: skip
    assert "one:" not in out


@pytest.mark.parametrize(("more", "run"), [([], "short middle"), (["--all"], "short middle long endless")])
def test_a_quarter_of_an_hour_is_run_the_shortest_first_and_what_is_left_is_named(
    more, run, tmp_path, capsys
):
    took = {"endless": [4000, None], "long": [1000, 600], "short": [20, None], "middle": [500, 500]}
    for name, seconds in took.items():
        put(tmp_path / "reference" / name, claim(), seconds=seconds)
    runs = Runs(**dict.fromkeys(took, claim()))
    assert again(runs, tmp_path / "reference", *more) == 0
    assert {asked["experiment"] for asked in runs.asked} == {*run.split()}
    told = capsys.readouterr()
    assert f"{len(run.split())} of {len(run.split())} claims hold" in told.out
    assert told.err == (
        "" if more else "2 of 4 experiments, in about 15 minutes where nothing is stored yet;"
        " --all runs endless, long too\n"
    )  # fmt: skip
    lone = tmp_path / "lone"
    put(lone / "endless", claim(), seconds=[4000])
    assert again(runs, lone) == 0, "one at least"


def text(folder, kind="text"):
    place = Place(kind=kind, name="code", together="one", ladder=None, rates=None)
    return {"name": folder.name.split("@")[0], "place": place}


def test_an_experiment_is_run_once_for_all_its_texts_and_no_rung_is_tried(tmp_path, capsys):
    reference = tmp_path / "reference"
    put(reference / "one", claim())
    put(reference / "one@code", claim(), **text(reference / "one@code"))
    put(reference / "one@depth.S", claim(), **text(reference / "one@depth.S", "rung"))
    runs = Runs(one=claim(), **{"one@code": claim(verdict="INCONCLUSIVE")})
    assert again(runs, reference) == 1
    assert len(runs.asked) == 1
    out = capsys.readouterr().out
    assert "1 of 2 claims hold, of 1 experiments" in out
    assert "one@code: was SUPPORTED, is INCONCLUSIVE: it holds" in out


def test_texts_and_what_tells_the_worth_of_training_take_their_time(tmp_path):
    put(tmp_path / "one", claim(), seconds=[100, 300], exchange=EXCHANGE.model_copy(update={"tokens": 1000}))
    assert claims._wanted(claims._reports(tmp_path), claims.standing)["one"][0] == claims.EACH + 300
    put(tmp_path / "one@code", claim(), seconds=[50], **text(tmp_path / "one@code"))
    assert claims._wanted(claims._reports(tmp_path), claims.standing)["one"][0] == claims.EACH + 325


@pytest.mark.parametrize(
    ("was", "now", "status"),
    [("REFUTED", "REFUTED", 0), ("REFUTED", "SUPPORTED", 1), ("SUPPORTED", "INCONCLUSIVE", 1)],
)
def test_all_is_all_that_was_decided_whichever_way(was, now, status, tmp_path, capsys):
    put(tmp_path / "reference" / "one", below(0.03, verdict=was))  # says that there is no effect
    put(tmp_path / "reference" / "two", claim())
    runs = Runs(one=below(0.03, verdict=now), two=claim())
    assert again(runs, tmp_path / "reference") == 0
    assert [asked["experiment"] for asked in runs.asked] == ["two"]
    assert "1 of 2 experiments, in about 15 minutes" in capsys.readouterr().err
    assert again(runs, tmp_path / "reference", "--all") == status
    assert f"{2 - status} of 2 claims hold" in capsys.readouterr().out


def test_a_claim_whose_words_were_mended_is_known_by_what_it_asks(tmp_path, capsys):
    asks = {"arm": "a", "against": "b", "metric": "m", "threshold": 0.5}
    put(tmp_path / "reference" / "one", claim("so is a", **asks), claim("so is c", **asks | {"arm": "c"}))
    today = claim("a is better than b", **asks)
    assert again(Runs(one=today), tmp_path / "reference") == 1
    out = capsys.readouterr().out
    assert "1 of 2 claims hold" in out
    assert "one: was SUPPORTED, is NO RESULT: so is c" in out


def test_an_identity_stays_whatever_its_relation():
    row = below(0.03, identity=True)
    assert claims.standing(report_of(row)) == [row]


def test_a_command_that_leaves_no_report_has_lost_its_claims(tmp_path, capsys):
    put(tmp_path / "reference" / "one", claim())
    put(tmp_path / "again" / "one", claim())  # of a run before, which must not pass for this one
    assert again(Runs(), tmp_path / "reference") == 1
    assert "is NO RESULT" in capsys.readouterr().out


def test_an_override_that_cannot_be_read_is_bad_input_and_no_claim_that_fell(tmp_path, capsys):
    for name in ("one", "two"):
        put(tmp_path / "reference" / name, claim())
    asked = []

    def refuses(overrides):
        asked.append(overrides)
        return 2

    with pytest.raises(Refused, match="one was refused as foo=1, so nothing was tried"):
        again(refuses, tmp_path / "reference", "foo=1")
    assert len(asked) == 1
    assert "NO RESULT" not in capsys.readouterr().out


def test_a_reference_of_another_version_is_named_and_never_passed_over(tmp_path):
    for name in ("one", "two"):
        put(tmp_path / "reference" / name, claim())
    old = tmp_path / "reference" / "two" / "report.json"
    old.write_text(json.dumps(json.loads(old.read_text()) | {"schema": 8}))
    runs = Runs(one=claim())
    with pytest.raises(ValueError, match=r"two/report\.json: has schema 8, this version reads 9"):
        again(runs, tmp_path / "reference")
    assert not runs.asked


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Refused, match="nowhere: no such folder"):
        again(Runs(), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("asserted", "stands"),
    [
        (claim(exact=True), True),
        (above(0.1), True),
        (below(-0.1), True),
        (below(0.25, compare="ratio"), True),
        (below(1.25, compare="ratio"), False),
        (below(0.03), False),
        (above(0.0), False),
        (above(0.1, timed=True), False),
        (above(1.5, compare="ratio", basis="timing"), False),
        (claim(verdict="INCONCLUSIVE"), False),
        (claim(verdict="REFUTED"), False),
        (claim(exploratory=True), False),
    ],
)
def test_what_stands_is_exact_or_an_effect_of_some_size_and_no_time(asserted, stands):
    assert bool(claims.standing(report_of(asserted))) is stands


def test_other_sizes_are_not_run_and_nothing_to_run_is_refused(tmp_path):
    put(tmp_path / "reference" / "one_M", claim(), size="M", name="one")
    with pytest.raises(Refused, match="no report of size S"):
        again(Runs(), tmp_path / "reference")
    with pytest.raises(Refused, match="one folder"):
        again(Runs(), "here", "there")


@pytest.mark.parametrize("name", ["../../evil", "a,b", "a b", "a=1", "${oc.env:HOME}", "/etc/x", ""])
def test_a_strangers_report_names_an_experiment_and_no_path_or_override(name, tmp_path):
    put(tmp_path / "reference" / "one", claim())
    put(tmp_path / "reference" / "two", claim(), name=name or "\n")
    runs = Runs(one=claim())
    with pytest.raises(Refused, match="is no name of a file"):
        again(runs, tmp_path / "reference")
    assert not runs.asked
