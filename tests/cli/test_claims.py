"""`claims` reruns the decided claims of reference reports and fails if a verdict changed."""

import json
from pathlib import Path

import pytest

from attnlab.cli.commands import parse_verb_line
from attnlab.cli.verbs import claims
from attnlab.errors import InvalidConfig
from attnlab.report.schema import REPORT_VERSION, ReplicationContext, Verdict, load_report
from attnlab.report.tables.claim_sources import load_reworded_report
from attnlab.store.experiment_schema import RELATIONS
from attnlab.store.run_schema import Budget

REFERENCE = Path(__file__).parents[2] / "reports" / "reference"
TEMPLATE = load_report(REFERENCE / "kv_cache_bytes" / "report.json")  # template for the reports of the tests
CALIBRATION = load_report(REFERENCE / "gqa_vs_mha" / "report.json").compute_calibration


def claim(says="it holds", verdict="SUPPORTED", exact=True, **more):
    template = TEMPLATE.verdict.claims[0]
    decision = template.decision.model_copy(update={"exact": exact})
    changes = {"says": says, "verdict": Verdict(verdict), "basis": "exact" if exact else "t"}
    changes |= {"decision": decision, "relation": RELATIONS["below"], "threshold": 0.5}
    return template.model_copy(update=changes | more)


def below(threshold, **more):
    return claim(exact=False, relation=RELATIONS["below"], threshold=threshold, **more)


def above(threshold, **more):
    return claim(exact=False, relation=RELATIONS["above"], threshold=threshold, **more)


def report_of(*claims, size="S", name="one", seconds=(), **more):
    run, experiment = TEMPLATE.runs[0], TEMPLATE.experiment
    budget = Budget(tokens=1000)
    changes = {
        "experiment": experiment.model_copy(update={"name": name, "size": size}),
        "verdict": TEMPLATE.verdict.model_copy(update={"claims": list(claims)}),
        "runs": [run.model_copy(update={"seconds": each, "budget": budget}) for each in seconds],
    }
    return TEMPLATE.model_copy(update=changes | more)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_report(folder, *claims, root="reference", **more):
    """Write a report of the experiment after which its folder is named."""
    name, _, corpus = folder.partition("@")
    if corpus:
        kind = "rung" if "." in corpus else "corpus"
        more["replication"] = ReplicationContext(
            kind=kind, name="code", combined_report="one", ladder=None, rates=None
        )
    path = Path(root) / folder
    path.mkdir(parents=True, exist_ok=True)
    report = report_of(*claims, **{"name": name} | more)
    (path / "report.json").write_text(json.dumps(report.to_dict()))


class FakeRunner:
    """A command runner that trains nothing: it records overrides and writes a planned report."""

    def __init__(self, **planned_claims):
        self.claims_by_folder, self.calls = planned_claims, []

    def __call__(self, overrides):
        values = dict(word.lstrip("+").split("=", 1) for word in overrides)
        self.calls.append(values)
        for folder, new_claim in self.claims_by_folder.items():
            if folder.split("@")[0] == values["experiment"]:
                write_report(folder, new_claim, root=values["paths.reports"])
        return 0


def rerun_claims(runs, *line):
    return claims.main(parse_verb_line("claims", ["reference", *line]), runs)


def test_unchanged_verdicts_exit_with_0(capsys):
    write_report("one", claim())
    runs = FakeRunner(one=claim())
    assert rerun_claims(runs, "logger=none") == 0
    assert (runs.calls[0]["size"], runs.calls[0]["logger"]) == ("S", "none")
    assert "1 of 1 claims hold" in capsys.readouterr().out


def test_changed_verdict_fails_the_command_and_is_named(capsys):
    for name in ("one", "two"):
        write_report(name, claim())
    runs = FakeRunner(one=claim(), two=claim(verdict="REFUTED"))
    lost = "two: was SUPPORTED, is REFUTED: it holds"
    assert rerun_claims(runs) == 1
    assert lost in capsys.readouterr().out
    assert rerun_claims(runs, "--json") == 1
    expected = {"hold": 1, "claims": 2, "experiments": 2, "lost": [lost], "left": []}
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.parametrize(("more", "run"), [([], "short middle"), (["--all"], "short middle long endless")])
def test_shortest_experiments_fill_the_time_budget_and_the_rest_is_named(more, run, capsys):
    times = {"endless": [4000, None], "long": [1000, 600], "short": [20, None], "middle": [500, 500]}
    for name, seconds in times.items():
        write_report(name, claim(), seconds=seconds)
    runs = FakeRunner(**dict.fromkeys(times, claim()))
    assert rerun_claims(runs, *more) == 0
    names = {*run.split()}
    assert {call["experiment"] for call in runs.calls} == names
    output = capsys.readouterr()
    assert f"{len(names)} of {len(names)} claims hold" in output.out
    announcement = (
        "re-testing 2 of 4 experiments, in about 15 minutes without cached runs; --all adds endless, long\n"
    )
    assert (output.err.startswith(announcement), "re-testing" in output.err) == (not more, not more)
    assert f"[1/{len(names)}] " in output.err


def test_one_experiment_runs_whatever_its_time():
    write_report("endless", claim(), seconds=[4000])
    assert rerun_claims(FakeRunner(endless=claim())) == 0


def test_experiment_runs_once_for_all_corpora_and_ladder_sizes_are_skipped(capsys):
    for name in ("one", "one@code", "one@depth.S"):
        write_report(name, claim())
    runs = FakeRunner(one=claim(), **{"one@code": claim(verdict="INCONCLUSIVE")})
    assert (rerun_claims(runs), len(runs.calls)) == (1, 1)
    out = capsys.readouterr().out
    assert "1 of 2 claims hold, of 1 experiments" in out
    assert "one@code: was SUPPORTED, is INCONCLUSIVE: it holds" in out


def test_estimated_time_includes_corpora_and_compute_calibration():
    def estimate():
        reports = claims._load_reports(Path("reference"))
        return claims._collect_claims(reports, claims.list_noise_proof_claims)["one"][0]

    calibration = CALIBRATION.model_copy(update={"tokens": 1000})
    write_report("one", claim(), seconds=[100, 300], compute_calibration=calibration)
    assert estimate() == claims.EXPERIMENT_OVERHEAD_SECONDS + 300
    write_report("one@code", claim(), seconds=[50])
    assert estimate() == claims.EXPERIMENT_OVERHEAD_SECONDS + 325


@pytest.mark.parametrize(
    ("old_verdict", "new_verdict", "status"),
    [("REFUTED", "REFUTED", 0), ("REFUTED", "SUPPORTED", 1), ("SUPPORTED", "INCONCLUSIVE", 1)],
)
def test_all_reruns_every_decided_claim(old_verdict, new_verdict, status, capsys):
    write_report("one", below(0.03, verdict=old_verdict))  # claims no effect
    write_report("two", claim())
    runs = FakeRunner(one=below(0.03, verdict=new_verdict), two=claim())
    assert rerun_claims(runs) == 0
    assert [call["experiment"] for call in runs.calls] == ["two"]
    assert rerun_claims(runs, "--all") == status
    assert f"{2 - status} of 2 claims hold" in capsys.readouterr().out


def test_reworded_claim_is_matched_by_its_content(capsys):
    fields = {"arm": "a", "against": "b", "metric": "m", "threshold": 0.5}
    write_report("one", claim("so is a", **fields), claim("so is c", **fields | {"arm": "c"}))
    assert rerun_claims(FakeRunner(one=claim("a is better than b", **fields))) == 1
    out = capsys.readouterr().out
    assert "1 of 2 claims hold" in out
    assert "one: was SUPPORTED, is NO RESULT: so is c" in out


def test_reworded_claim_is_matched_although_its_margin_in_nats_was_measured_again():
    path = REFERENCE / "tied_qkv" / "report.json"
    report = load_report(path)
    [current] = load_reworded_report(path).verdict.claims
    assert current.threshold_text == "5 % of training, at most 0.03 nats"
    more = {"reproduce": report.reproduce, "compute_calibration": report.compute_calibration}
    write_report("tied_qkv", current.model_copy(update={"says": "as it was worded then"}), **more)
    measured_again = current.model_copy(update={"threshold": 1.02 * current.threshold})
    assert rerun_claims(FakeRunner(tied_qkv=measured_again)) == 0


def test_command_without_report_loses_its_claims(capsys):
    write_report("one", claim())
    write_report("one", claim(), root="again")  # stale report that must not pass for the new one
    assert rerun_claims(FakeRunner()) == 1
    assert "is NO RESULT" in capsys.readouterr().out


def test_invalid_override_is_an_input_error_and_no_changed_claim(capsys):
    for name in ("one", "two"):
        write_report(name, claim())
    calls = []
    message = "the command of one failed validation with foo=1, so nothing was re-tested"
    with pytest.raises(InvalidConfig, match=message):
        rerun_claims(lambda overrides: calls.append(overrides) or 2, "foo=1")
    assert (len(calls), "NO RESULT" in capsys.readouterr().out) == (1, False)


@pytest.mark.parametrize("name", ["../../evil", "a,b", "a b", "a=1", "${oc.env:HOME}", "/etc/x", "\n", None])
def test_reference_of_another_schema_or_with_a_name_that_is_not_plain_is_an_error(name):
    write_report("one", claim())
    write_report("two", claim(), name=name or "two")
    message = "is not a valid file name"
    if name is None:
        file = Path("reference/two/report.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 8}))
        message = rf"two/report\.json: has schema 8, this version reads {REPORT_VERSION}"
    runs = FakeRunner(one=claim())
    with pytest.raises(ValueError, match=message):
        rerun_claims(runs)
    assert not runs.calls


@pytest.mark.parametrize(
    ("tested_claim", "is_selected"),
    [
        (claim(exact=True), True),
        (above(0.1), True),
        (below(0.03, identity=True), True),
        (below(-0.1), True),
        (below(0.25, compare="ratio"), True),
        (below(1.25, compare="ratio"), False),
        (below(0.03), False),
        (above(0.0), False),
        (above(0.1, timed=True), False),
        (claim(verdict="INCONCLUSIVE"), False),
        (claim(verdict="REFUTED"), False),
        (claim(exploratory=True), False),
    ],
)
def test_noise_proof_claims_are_exact_or_exclude_zero_and_use_no_timing(tested_claim, is_selected):
    assert bool(claims.list_noise_proof_claims(report_of(tested_claim))) is is_selected


def test_other_sizes_are_skipped_and_an_empty_selection_is_rejected(refuse):
    refuse("claims nowhere", "nowhere: folder not found")
    refuse("claims here there", "one folder")
    write_report("one_M", claim(), size="M", name="one")
    refuse("claims reference", "no report of size S")
