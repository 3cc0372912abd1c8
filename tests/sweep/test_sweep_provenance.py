import os
import subprocess

from attnlab.sweep.plan import provenance


def test_asking_git_leaves_the_users_checkout_as_it_is(tmp_path, monkeypatch):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    file = tmp_path / "file"
    file.write_text("as it was")
    git("init")
    git("add", "file")
    git("commit", "-m", "one")
    os.utime(file, (1, 1))  # git would now like to write its index anew
    monkeypatch.setattr(provenance, "HOME", tmp_path)
    before = (tmp_path / ".git" / "index").read_bytes()
    commit, dirty = provenance.git()
    assert (len(commit), dirty) == (40, False)
    assert (tmp_path / ".git" / "index").read_bytes() == before
