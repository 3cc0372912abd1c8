"""A stored report is shown with the wording of the current experiment file, and with its own numbers."""

import json
import re
import shutil

import pytest
from omegaconf import OmegaConf
from rendering import REFERENCES
from synthetic import replace_fields

from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.report.ladder_schema import LADDER_FILE, load_ladder
from attnlab.report.markdown_text import Markdown
from attnlab.report.pages import index, report_files
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.replications.ladder_page import build_ladder_page
from attnlab.report.schema import Report, load_report
from attnlab.report.tables import claim_sources

CURRENT = OmegaConf.load(CONF / "experiment" / "gqa_vs_mha.yaml")
SAYS = [claim.says for claim in CURRENT.claims]
SAMPLED = SAYS[:3]  # claims that seeds decide: those about bytes are exact
OLD_WORDS = "the wording of a year ago"


def age(report: Report) -> Report:
    """Give a report and its preregistration other words than the current experiment file has."""
    claims = [replace_fields(claim, says=f"{OLD_WORDS} {i}") for i, claim in enumerate(report.verdict.claims)]
    rows = [replace_fields(row, says=f"{OLD_WORDS} {i}") for i, row in enumerate(report.corpora.claims)]
    preregistered = {**report.reproduce.preregistered, "question": OLD_WORDS}
    return replace_fields(
        report,
        experiment__question=OLD_WORDS,
        verdict__claims=claims,
        corpora__claims=rows,
        reproduce__preregistered=preregistered,
    )


@pytest.mark.parametrize("name", ["gqa_vs_mha", "gqa_vs_mha@code"])
def test_claims_take_the_current_words_on_every_corpus_and_keep_all_numbers(name):
    old = age(load_report(REFERENCES / name / "report.json"))
    new = claim_sources.reword_report(old)
    assert [claim.says for claim in new.verdict.claims] == SAYS
    assert [row.says for row in new.corpora.claims] == SAMPLED
    assert new.experiment.question == CURRENT.question
    assert new.reproduce == old.reproduce, "the preregistration keeps its words"
    for before, after in zip(old.verdict.claims, new.verdict.claims, strict=True):
        assert after == replace_fields(before, says=after.says, reason=after.reason)


def test_a_claim_with_another_comparison_and_a_changed_question_keep_their_words():
    old = age(load_report(REFERENCES / "gqa_vs_mha" / "report.json"))
    [first, second, *others] = old.verdict.claims
    in_nats = {"threshold": 0.5, "threshold_text": None}
    claims = [replace_fields(first, **in_nats), replace_fields(second, arm="gqa"), *others]
    changed = replace_fields(
        old, verdict__claims=claims, experiment__question="a question of the command line"
    )
    new = claim_sources.reword_report(changed)
    assert [claim.says for claim in new.verdict.claims] == [first.says, second.says, *SAYS[2:]]
    assert new.experiment.question == "a question of the command line"


def test_a_ladder_size_states_the_margin_of_the_ladder():
    report = claim_sources.load_reworded_report(REFERENCES / "gqa_vs_mha@two_cores.S" / "report.json")
    words = [claim.says for claim in report.verdict.claims]
    assert words == [SAYS[0].replace("5% of training compute", "0.02 nats"), *SAYS[1:]]
    margin_reason = OmegaConf.load(CONF / "ladder" / "two_cores.yaml").margin_reason
    assert report.experiment.margin_reason == margin_reason
    folder = REFERENCES / "gqa_vs_mha@two_cores"
    ladder = claim_sources.load_reworded_ladder(folder)
    assert {claim.says for claim in ladder.claims} == set(words[: len(SAMPLED)])
    assert (ladder.question, ladder.margin_reason) == (CURRENT.question, margin_reason)
    assert "0.02 nats" in render_markdown(build_ladder_page(ladder))
    stored = load_ladder(folder)
    assert ladder.comparisons == stored.comparisons
    assert [claim.verdicts for claim in ladder.claims] == [claim.verdicts for claim in stored.claims]


@pytest.mark.parametrize("name", ["x/../../../other", "a\\b", "a\0b"])
def test_ladder_with_a_path_in_place_of_a_size_reads_no_other_folder(tmp_path, name):
    document = json.loads((REFERENCES / "gqa_vs_mha@two_cores" / LADDER_FILE).read_text("utf-8"))
    document["sizes"][0]["name"] = name
    folder = tmp_path / "ladder"
    folder.mkdir()
    (folder / LADDER_FILE).write_text(json.dumps(document), "utf-8")
    with pytest.raises(InvalidConfig, match="remove or rename it"):
        claim_sources.load_reworded_ladder(folder)


def test_figures_of_a_report_are_not_written_through_a_link(tmp_path, blank_charts):
    folder, pictures = tmp_path / "gqa_vs_mha", tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "mine.png").touch()
    folder.mkdir()
    shutil.copy(REFERENCES / "gqa_vs_mha" / "report.json", folder)
    (folder / "figures").symlink_to(pictures)
    with pytest.raises(InvalidConfig, match="'figures' leads out of the folder by a link"):
        report_files.render_report(folder)
    assert [path.name for path in pictures.iterdir()] == ["mine.png"]


def test_page_markdown_and_index_show_the_current_words(tmp_path, blank_charts):
    folder = tmp_path / "gqa_vs_mha"
    folder.mkdir()
    old = age(load_report(REFERENCES / "gqa_vs_mha" / "report.json"))
    (folder / "report.json").write_text(report_files.format_json(old.to_dict()), "utf-8")
    report_files.render_report(folder)
    page, note = ((folder / name).read_text("utf-8") for name in ("report.html", "report.md"))
    overview = index.render_index(tmp_path)
    for text in (page, note, overview):
        assert CURRENT.question in text
        assert OLD_WORDS not in text
    assert all(says in page and says in overview for says in SAYS)
    assert all(Markdown.escape(says) in note for says in SAMPLED)
    assert CURRENT.claims[0].source in re.sub("</?a[^>]*>", "", page)
