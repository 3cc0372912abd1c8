"""`judge` on files, in an empty working directory."""

import json
import shlex

import pytest

from attnlab.__main__ import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def judge(folder, capfd):
    """`judge(*parts)`: run `judge ... --json`; return the status, and the document or the error."""

    def call(*parts):
        status = main(["judge", *shlex.split(" ".join(parts)), "--json"])
        out, err = capfd.readouterr()
        return status, json.loads(out) if out else err

    return call
