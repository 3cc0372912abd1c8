"""The site and the tour: pages are built, their links followed, and what is shown is what runs."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from sampling import FULL, full

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / ".ci" / "site"))
import links  # noqa: E402
import notebook  # noqa: E402
import reference  # noqa: E402

RENDERED = ("gqa_vs_mha", "smoke", "gqa_vs_mha@two_cores")  # of the reports, where a sample is enough
TOUR = ROOT / "docs" / "tour.ipynb"


@pytest.mark.rare
@full
@pytest.mark.timeout(900)
def test_the_tour_shows_what_its_cells_show(monkeypatch):
    monkeypatch.chdir(ROOT)
    stored, now = json.loads(TOUR.read_text("utf-8")), notebook.run(TOUR)
    shown = [[cell for cell in told["cells"] if cell["cell_type"] == "code"] for told in (stored, now)]
    for old, new in zip(*shown, strict=True):
        kinds = [[sorted(output["data"]) for output in cell["outputs"]] for cell in (old, new)]
        assert kinds[0] == kinds[1]
        plain = [[output["data"]["text/plain"] for output in cell["outputs"]] for cell in (old, new)]
        assert plain[0] == plain[1], "".join(new["source"])
    assert TOUR.stat().st_size < 100_000


def test_a_notebook_runs_and_becomes_a_page(tmp_path):
    sources = ["a = 2", "a + 1", "a;\n'x'"]
    cells = [{"cell_type": "code", "source": [source], "outputs": []} for source in sources]
    file = tmp_path / "n.ipynb"
    file.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["# N"]}, *cells]}))
    ran = notebook.run(file)
    told = [[output["data"] for output in cell.get("outputs", [])] for cell in ran["cells"]]
    assert told == [[], [], [{"text/plain": ["3"]}], [{"text/plain": ["'x'"]}]]
    file.write_text(json.dumps(ran))
    page = notebook.page(file)["n.md"].decode()
    assert page.startswith("# N\n\n```python\na = 2\n```\n\n```python\na + 1\n```\n\n```text\n3\n```\n")


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("b.html", ""), ("b.html#here", ""), ("#top", ""), ("sub/", ""), ("/b.html", ""), ("b%2Ehtml", ""),
        ("https://nowhere.example/x", ""), ("mailto:a@b", ""), ("c.html", "no file"), ("sub", ""),
        ("b.html#gone", "no place"), ("#gone", "no place"), ("../out.html", "no file"), ("empty/", "no file"),
    ],
)  # fmt: skip
def test_a_link_that_leads_nowhere_is_found(tmp_path, link, wrong):
    site = tmp_path / "site"
    for folder in ("sub", "empty"):
        (site / folder).mkdir(parents=True)
    (tmp_path / "out.html").touch()
    (site / "sub" / "index.html").touch()
    (site / "b.html").write_text("<h2 id=here>b</h2>")
    (site / "a.html").write_text(f'<p id="top"><a href="{link}">x</a>')
    found = links.broken(site)
    assert len(found) == bool(wrong)
    assert all(f"a.html: {link} leads to {wrong}" in line for line in found)


def test_the_reference_has_every_public_name_and_every_option():
    pages = reference.pages(ROOT)
    for name in ("load", "check_variant", "Heads", "Mixer", "Bias", "Memory", "Task", "OnStep"):
        assert f"\n### {name}\n" in pages["python.md"]
    assert "\n    def project(self, x_BTM: Tensor" in pages["python.md"]
    assert "Grouped-query attention: two query heads share" in pages["heads.md"]
    assert "(heads.md#gqa)" in pages["options.md"]
    assert "python -m attnlab judge" in pages["verbs.md"]


@pytest.mark.rare
@pytest.mark.timeout(1200)
@pytest.mark.skipif(find_spec("zensical") is None, reason="needs zensical: pip install -e '.[docs]'")
def test_the_site_is_built_and_its_links_lead_somewhere():
    command = [sys.executable, ".ci/site", *([] if FULL else RENDERED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every link leads somewhere" in done.stdout
    site = ROOT / "build" / "docs" / "site"
    for page in ("index.html", "docs/tour/index.html", "reference/python/index.html"):
        assert (site / page).is_file()
    assert (site / "reports/reference/ledger.html").is_file()


def test_the_workflows_call_what_there_is_on_every_python_that_is_promised():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    promised = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    tried = set()
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            tried |= {*job.get("strategy", {}).get("matrix", {}).get("python-version", [])}
            for step in job["steps"]:
                version = step.get("with", {}).get("python-version", "")
                tried |= {version} if not version.startswith("$") else set()
                program, _, target = step.get("run", "").partition(" ")
                assert target in targets if program == "make" else (ROOT / program).exists()
    assert tried - {""} == {*promised}
