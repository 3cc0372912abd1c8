"""`claims` reruns the decided claims of reference reports and fails if a verdict changed."""

import json
from pathlib import Path

import pytest

from attnlab.cli.commands import parse_verb_line
from attnlab.cli.verbs import claims
from attnlab.errors import InvalidConfig
from attnlab.report.schema import REPORT_VERSION, ReplicationContext, Report, Verdict, load_report
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


def report_of(*claims, size="S", name="one", seconds=(), **more) -> Report:
    tokens = Budget(tokens=1000)
    runs = [
        TEMPLATE.runs[0].model_copy(update={"seconds": run_seconds, "budget": tokens})
        for run_seconds in seconds
    ]
    experiment = TEMPLATE.experiment.model_copy(update={"name": name, "size": size})
    verdict = TEMPLATE.verdict.model_copy(update={"claims": list(claims)})
    return TEMPLATE.model_copy(update={"experiment": experiment, "verdict": verdict, "runs": runs} | more)


def write_report(folder: Path, *claims, name=None, **more) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    report = report_of(*claims, name=folder.name if name is None else name, **more)
    (folder / "report.json").write_text(json.dumps(report.to_dict()))


class FakeRunner:
    """A command runner that trains nothing: it records overrides and writes a planned report."""

    def __init__(self, **planned_claims):
        self.claims_by_folder, self.calls = planned_claims, []

    def __call__(self, overrides):
        values = dict(word.lstrip("+").split("=", 1) for word in overrides)
        self.calls.append(values)
        for folder, new_claim in self.claims_by_folder.items():
            if folder.split("@")[0] == values["experiment"]:
                write_report(Path(values["paths.reports"]) / folder, new_claim, name=values["experiment"])
        return 0


def rerun_claims(runs, *line):
    return claims.main(parse_verb_line("claims", [str(word) for word in line]), runs)


def test_unchanged_verdicts_exit_with_0(tmp_path, capsys):
    write_report(tmp_path / "reference" / "one", claim())
    runs = FakeRunner(one=claim())
    assert rerun_claims(runs, tmp_path / "reference", "logger=none") == 0
    assert runs.calls[0]["size"] == "S"
    assert runs.calls[0]["logger"] == "none"
    assert "1 of 1 claims hold" in capsys.readouterr().out


def test_changed_verdict_fails_the_command_and_is_named(tmp_path, capsys):
    for name in ("one", "two"):
        write_report(tmp_path / "reference" / name, claim())
    assert rerun_claims(FakeRunner(one=claim(), two=claim(verdict="REFUTED")), tmp_path / "reference") == 1
    out = capsys.readouterr().out
    assert "two: was SUPPORTED, is REFUTED: it holds" in out
    assert (
        rerun_claims(FakeRunner(one=claim(), two=claim(verdict="REFUTED")), tmp_path / "reference", "--json")
        == 1
    )
    output = json.loads(capsys.readouterr().out)
    assert output == {
        "hold": 1, "claims": 2, "experiments": 2, "lost": ["two: was SUPPORTED, is REFUTED: it holds"],
        "left": [],
    }  # fmt: skip
    assert "one:" not in out


@pytest.mark.parametrize(("more", "run"), [([], "short middle"), (["--all"], "short middle long endless")])
def test_shortest_experiments_fill_the_time_budget_and_the_rest_is_named(more, run, tmp_path, capsys):
    seconds_by_name = {
        "endless": [4000, None],
        "long": [1000, 600],
        "short": [20, None],
        "middle": [500, 500],
    }
    for name, seconds in seconds_by_name.items():
        write_report(tmp_path / "reference" / name, claim(), seconds=seconds)
    runs = FakeRunner(**dict.fromkeys(seconds_by_name, claim()))
    assert rerun_claims(runs, tmp_path / "reference", *more) == 0
    assert {call["experiment"] for call in runs.calls} == {*run.split()}
    output = capsys.readouterr()
    assert f"{len(run.split())} of {len(run.split())} claims hold" in output.out
    announcement = (
        "re-testing 2 of 4 experiments, in about 15 minutes without cached runs; --all adds endless, long\n"
    )
    assert output.err.startswith("" if more else announcement)
    assert ("re-testing" in output.err) == (not more)
    assert f"[1/{len(run.split())}] " in output.err
    single_root = tmp_path / "lone"
    write_report(single_root / "endless", claim(), seconds=[4000])
    assert rerun_claims(runs, single_root) == 0, "one at least"


def replication_of(folder, kind="corpus"):
    replication = ReplicationContext(kind=kind, name="code", combined_report="one", ladder=None, rates=None)
    return {"name": folder.name.split("@")[0], "replication": replication}


def test_experiment_runs_once_for_all_corpora_and_ladder_sizes_are_skipped(tmp_path, capsys):
    reference = tmp_path / "reference"
    write_report(reference / "one", claim())
    write_report(reference / "one@code", claim(), **replication_of(reference / "one@code"))
    write_report(reference / "one@depth.S", claim(), **replication_of(reference / "one@depth.S", "rung"))
    runs = FakeRunner(one=claim(), **{"one@code": claim(verdict="INCONCLUSIVE")})
    assert rerun_claims(runs, reference) == 1
    assert len(runs.calls) == 1
    out = capsys.readouterr().out
    assert "1 of 2 claims hold, of 1 experiments" in out
    assert "one@code: was SUPPORTED, is INCONCLUSIVE: it holds" in out


def test_estimated_time_includes_corpora_and_compute_calibration(tmp_path):
    write_report(
        tmp_path / "one",
        claim(),
        seconds=[100, 300],
        compute_calibration=CALIBRATION.model_copy(update={"tokens": 1000}),
    )
    assert (
        claims._collect_claims(claims._load_reports(tmp_path), claims.list_noise_proof_claims)["one"][0]
        == claims.EXPERIMENT_OVERHEAD_SECONDS + 300
    )
    write_report(tmp_path / "one@code", claim(), seconds=[50], **replication_of(tmp_path / "one@code"))
    assert (
        claims._collect_claims(claims._load_reports(tmp_path), claims.list_noise_proof_claims)["one"][0]
        == claims.EXPERIMENT_OVERHEAD_SECONDS + 325
    )


@pytest.mark.parametrize(
    ("old_verdict", "new_verdict", "status"),
    [("REFUTED", "REFUTED", 0), ("REFUTED", "SUPPORTED", 1), ("SUPPORTED", "INCONCLUSIVE", 1)],
)
def test_all_reruns_every_decided_claim(old_verdict, new_verdict, status, tmp_path, capsys):
    write_report(tmp_path / "reference" / "one", below(0.03, verdict=old_verdict))  # claims no effect
    write_report(tmp_path / "reference" / "two", claim())
    runs = FakeRunner(one=below(0.03, verdict=new_verdict), two=claim())
    assert rerun_claims(runs, tmp_path / "reference") == 0
    assert [call["experiment"] for call in runs.calls] == ["two"]
    assert "1 of 2 experiments, in about 15 minutes" in capsys.readouterr().err
    assert rerun_claims(runs, tmp_path / "reference", "--all") == status
    assert f"{2 - status} of 2 claims hold" in capsys.readouterr().out


def test_reworded_claim_is_matched_by_its_content(tmp_path, capsys):
    fields = {"arm": "a", "against": "b", "metric": "m", "threshold": 0.5}
    write_report(
        tmp_path / "reference" / "one", claim("so is a", **fields), claim("so is c", **fields | {"arm": "c"})
    )
    reworded = claim("a is better than b", **fields)
    assert rerun_claims(FakeRunner(one=reworded), tmp_path / "reference") == 1
    out = capsys.readouterr().out
    assert "1 of 2 claims hold" in out
    assert "one: was SUPPORTED, is NO RESULT: so is c" in out


def test_reworded_claim_is_matched_although_its_margin_in_nats_was_measured_again(tmp_path, capsys):
    report = load_report(REFERENCE / "tied_qkv" / "report.json")
    [current] = load_reworded_report(REFERENCE / "tied_qkv" / "report.json").verdict.claims
    assert current.threshold is not None
    assert current.threshold_text == "5 % of training, at most 0.03 nats"
    write_report(
        tmp_path / "reference" / "tied_qkv",
        current.model_copy(update={"says": "as it was worded then"}),
        reproduce=report.reproduce,
        compute_calibration=report.compute_calibration,
    )
    measured_again = current.model_copy(update={"threshold": 1.02 * current.threshold})
    assert rerun_claims(FakeRunner(tied_qkv=measured_again), tmp_path / "reference") == 0
    assert "1 of 1 claims hold" in capsys.readouterr().out


def test_claim_by_construction_is_noise_proof_for_any_relation():
    identity_claim = below(0.03, identity=True)
    assert claims.list_noise_proof_claims(report_of(identity_claim)) == [identity_claim]


def test_command_without_report_loses_its_claims(tmp_path, capsys):
    write_report(tmp_path / "reference" / "one", claim())
    write_report(tmp_path / "again" / "one", claim())  # stale report that must not pass for the new one
    assert rerun_claims(FakeRunner(), tmp_path / "reference") == 1
    assert "is NO RESULT" in capsys.readouterr().out


def test_invalid_override_is_an_input_error_and_no_changed_claim(tmp_path, capsys):
    for name in ("one", "two"):
        write_report(tmp_path / "reference" / name, claim())
    calls = []

    def reject(overrides):
        calls.append(overrides)
        return 2

    with pytest.raises(
        InvalidConfig, match="the command of one failed validation with foo=1, so nothing was re-tested"
    ):
        rerun_claims(reject, tmp_path / "reference", "foo=1")
    assert len(calls) == 1
    assert "NO RESULT" not in capsys.readouterr().out


def test_reference_of_another_schema_version_is_an_error(tmp_path):
    for name in ("one", "two"):
        write_report(tmp_path / "reference" / name, claim())
    report_file = tmp_path / "reference" / "two" / "report.json"
    report_file.write_text(json.dumps(json.loads(report_file.read_text()) | {"schema": 8}))
    runs = FakeRunner(one=claim())
    message = rf"two/report\.json: has schema 8, this version reads {REPORT_VERSION}"
    with pytest.raises(ValueError, match=message):
        rerun_claims(runs, tmp_path / "reference")
    assert not runs.calls


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(InvalidConfig, match="nowhere: folder not found"):
        rerun_claims(FakeRunner(), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("tested_claim", "is_selected"),
    [
        (claim(exact=True), True),
        (above(0.1), True),
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


def test_other_sizes_are_skipped_and_an_empty_selection_is_rejected(tmp_path):
    write_report(tmp_path / "reference" / "one_M", claim(), size="M", name="one")
    with pytest.raises(InvalidConfig, match="no report of size S"):
        rerun_claims(FakeRunner(), tmp_path / "reference")
    with pytest.raises(InvalidConfig, match="one folder"):
        rerun_claims(FakeRunner(), "here", "there")


@pytest.mark.parametrize("name", ["../../evil", "a,b", "a b", "a=1", "${oc.env:HOME}", "/etc/x", ""])
def test_experiment_name_of_an_untrusted_report_must_be_plain(name, tmp_path):
    write_report(tmp_path / "reference" / "one", claim())
    write_report(tmp_path / "reference" / "two", claim(), name=name or "\n")
    runs = FakeRunner(one=claim())
    with pytest.raises(InvalidConfig, match="is not a valid file name"):
        rerun_claims(runs, tmp_path / "reference")
    assert not runs.calls
