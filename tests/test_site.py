"""The documentation site and the tour notebook: pages, links, and stored outputs."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from sampling import full

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / ".ci" / "site"))
import links  # noqa: E402
import notebook  # noqa: E402
import reference  # noqa: E402

TOUR = ROOT / "docs" / "tour.ipynb"


@pytest.mark.rare
@full
@pytest.mark.timeout(900)
def test_stored_outputs_of_the_tour_equal_a_rerun(monkeypatch):
    monkeypatch.chdir(ROOT)
    stored, rerun = json.loads(TOUR.read_text("utf-8")), notebook.run_notebook(TOUR)
    code_cells = [
        [cell for cell in outputs["cells"] if cell["cell_type"] == "code"] for outputs in (stored, rerun)
    ]
    for stored_cell, rerun_cell in zip(*code_cells, strict=True):
        kinds = [[sorted(output["data"]) for output in cell["outputs"]] for cell in (stored_cell, rerun_cell)]
        assert kinds[0] == kinds[1]
        texts = [
            [output["data"]["text/plain"] for output in cell["outputs"]] for cell in (stored_cell, rerun_cell)
        ]
        assert texts[0] == texts[1], "".join(rerun_cell["source"])
    assert TOUR.stat().st_size < 100_000


def test_notebook_runs_and_renders_to_markdown(tmp_path):
    sources = ["a = 2", "a + 1", "a;\n'x'"]
    cells = [{"cell_type": "code", "source": [source], "outputs": []} for source in sources]
    file = tmp_path / "n.ipynb"
    file.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["# N"]}, *cells]}))
    result = notebook.run_notebook(file)
    outputs = [[output["data"] for output in cell.get("outputs", [])] for cell in result["cells"]]
    assert outputs == [[], [], [{"text/plain": ["3"]}], [{"text/plain": ["'x'"]}]]
    file.write_text(json.dumps(result))
    page = notebook.render_notebook(file)["n.md"].decode()
    assert page.startswith("# N\n\n```python\na = 2\n```\n\n```python\na + 1\n```\n\n```text\n3\n```\n")


def test_long_html_is_not_stored_in_a_notebook(tmp_path):
    class Page:
        def __init__(self, length):
            self.length = length

        def __repr__(self):
            return "a page"

        def _repr_html_(self):
            return "x" * self.length

    limit = notebook.MAX_HTML_CHARS
    kinds = [[*notebook._format_output(Page(limit + more), 1)["data"]] for more in (0, 1)]
    assert kinds == [["text/plain", "text/html"], ["text/plain"]]


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("b.html", ""), ("b.html#here", ""), ("#top", ""), ("sub/", ""), ("/b.html", ""), ("b%2Ehtml", ""),
        ("https://nowhere.example/x", ""), ("mailto:a@b", ""), ("c.html", "no file"), ("sub", ""),
        ("b.html#gone", "no place"), ("#gone", "no place"), ("../out.html", "no file"), ("empty/", "no file"),
    ],
)  # fmt: skip
def test_broken_links_are_detected(tmp_path, link, problem):
    site = tmp_path / "site"
    for folder in ("sub", "empty"):
        (site / folder).mkdir(parents=True)
    (tmp_path / "out.html").touch()
    (site / "sub" / "index.html").touch()
    (site / "b.html").write_text("<h2 id=here>b</h2>")
    (site / "a.html").write_text(f'<p id="top"><a href="{link}">x</a>')
    errors = links.find_broken_links(site)
    assert len(errors) == bool(problem)
    assert all(f"a.html: {link} leads to {problem}" in line for line in errors)


def test_reference_has_public_names_and_options():
    pages = reference.build_pages(ROOT)
    for name in ("load", "check_variant", "Heads", "Mixer", "Bias", "MemoryMixer", "Task", "StepCallback"):
        assert f"\n### {name}\n" in pages["python.md"]
    assert "\n    def project(self, x_BTM: Tensor" in pages["python.md"]
    assert "Grouped-query attention: two query heads share" in pages["heads.md"]
    assert "(heads.md#gqa)" in pages["options.md"]
    assert "python -m attnlab judge" in pages["verbs.md"]


@pytest.mark.rare
@pytest.mark.timeout(1800)
def test_site_builds_with_resolving_links(site):
    for page in ("index.html", "docs/tour/index.html", "reference/python/index.html"):
        assert (site / page).is_file()
    ledger = (site / "reports/reference/ledger.html").read_text("utf-8")
    assert 'href="../../docs/bibliography/#ainslie-2023-2305-13245"' in ledger


@pytest.mark.rare
@pytest.mark.timeout(1800)
def test_site_requests_nothing_from_another_host(site):
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 50
    assert {
        path.name: found for path in pages if (found := links.find_requests(path.read_text("utf-8")))
    } == {}


@pytest.mark.parametrize(
    ("text", "n_requests"),
    [
        ('<a href="https://x.example/">x</a> <svg xmlns="http://www.w3.org/2000/svg"></svg>', 0),
        ('<link rel="stylesheet" href="a.css"><script src="../b.js"></script>', 0),
        ("<style>p { background: url('data:image/png;base64,x') }</style>", 0),
        ('<link rel="preconnect" href="https://x.example">', 1),
        ('<script src="//x.example/b.js"></script><img src="http://x.example/c.png">', 2),
        ("@import 'https://x.example/d.css'; p { background: url(https://x.example/e.png) }", 2),
        ('<style>@import url("https://x.example/d.css")</style>', 1),
    ],
)
def test_requests_to_other_hosts_are_detected(text, n_requests):
    assert len(links.find_requests(text)) == n_requests


def test_workflows_run_existing_targets_on_all_supported_pythons():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    supported = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    tested = set()
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            tested |= {*job.get("strategy", {}).get("matrix", {}).get("python-version", [])}
            for step in job["steps"]:
                version = step.get("with", {}).get("python-version", "")
                tested |= {version} if not version.startswith("$") else set()
                program, _, target = step.get("run", "").partition(" ")
                assert target in targets if program == "make" else (ROOT / program).exists()
    assert tested - {""} == {*supported}
