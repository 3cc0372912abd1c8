"""Installed Python as a text: what is in it, in which order, on which side, and that it is looked at once."""

import random
from importlib.metadata import distribution, distributions

import pytest
from sampling import full

from attnlab.data import text
from attnlab.data.corpora import code
from attnlab.data.corpora.corpus import held_out
from attnlab.data.tokenizers import Byte
from attnlab.errors import Refused


def program(seed, lines=20):
    draw = random.Random(seed)
    return "".join(f"    x{draw.randrange(10**6)} = {draw.random()}\n" for _ in range(lines))


FILES = {
    "beta/__init__.py": program(1),
    "beta/part/deep.py": program(2),
    "beta/copied.py": program(0),  # of alpha's
    "beta/nearly.py": program(3) + "one = 1\n",  # of the library's
    "beta/nothing.py": " \n",
    "beta/latin.py": b"name = 'caf\xe9'\n",
    "beta/version.py": "made = 'by a build'\n",
    "beta/part_pb2.py": "DESCRIPTOR = b''\n",
    "beta/tests/checks.py": program(4),
    "beta/test_it.py": program(5),
    "beta/notes.txt": "no code\n",
    "gamma.py": program(6),
}
LIBRARY = {
    "zoo.py": program(3),
    "aged/__init__.py": program(7),
    "aged/test/more.py": program(8),
    "site-packages/other.py": program(9),
    "config-3.11-linux/made.py": program(10),
    "pydoc_data/topics.py": program(11),
    "_sysconfigdata__linux.py": program(12),
}


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def install(site, name, version, files):
    write(site, files)
    info = f"{name}-{version}.dist-info"
    record = "".join(f"{file},,\n" for file in reversed([*files, f"{name}/gone.py", f"../bin/{name}.py"]))
    write(site, {f"{info}/METADATA": f"Name: {name}\nVersion: {version}\n", f"{info}/RECORD": record})


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment in a folder of its own: a library, `alpha` and `beta`."""

    def made(name="here", version="2.0"):
        home = tmp_path / name
        write(home / "lib", LIBRARY)
        install(home / "site", "alpha", version, {"alpha/__init__.py": program(0)})
        install(home / "site", "beta", "1", FILES)
        monkeypatch.setattr(code, "LIBRARY", str(home / "lib"))
        monkeypatch.setattr(code, "PACKAGES", ("alpha", "beta"))
        found = {each.name: each for each in distributions(path=[str(home / "site")])}
        monkeypatch.setattr(code, "distribution", found.__getitem__)
        return code.code_corpus(str(tmp_path / "cache"))

    return made


def test_the_text_is_code_in_order_of_package_and_path_without_tests_and_duplicates(environment):
    about = environment().about
    near = program(3) + "one = 1\n"  # comes first, so the library's is the duplicate
    packages = {
        "aged": [program(7)],
        "alpha": [program(0)],
        "beta": [program(1), near, program(2)],
        "gamma": [program(6)],
    }
    whole = "".join("\n".join(files) + "\n" for files in packages.values())
    assert environment().text() == whole
    assert [name for name, _ in about.groups] == list(packages)
    assert about.bytes == len(whole) == sum(size for _, size in about.groups)
    assert about.counts == {
        "files kept": 6, "files listed": 12, "missing": 2, "empty": 1, "not UTF-8": 1, "duplicates": 1,
        "near duplicates": 1,
    }  # fmt: skip


def test_two_environments_of_the_same_versions_have_the_same_corpus(environment):
    one, other = environment("one"), environment("other")
    assert one.about == other.about
    assert one.read() == other.read()
    assert environment("built", version="2.0+cpu").about == one.about
    newer = environment("newer", version="2.1").about
    assert newer.fingerprint != one.about.fingerprint
    assert newer.sha256 == one.about.sha256
    assert "alpha 2.1, beta 1, files" in newer.origin


def test_what_is_prepared_is_not_looked_at_again(environment, monkeypatch, tmp_path):
    first = environment()
    monkeypatch.setattr(code, "listed", lambda *_: pytest.fail("looked again"))
    assert code.code_corpus(str(tmp_path / "cache")).about == first.about


def test_packages_are_whole_on_one_side(environment, tmp_path):
    task = text.Text(environment(), Byte(), 8, 0.3, None, str(tmp_path / "cache"))
    sides = [bytes(task.training).decode(), bytes(task.validation).decode()]
    chosen = held_out(environment().about.groups, 0.3)
    assert 0 < len(chosen) < 4
    for package, seeds in {"aged": [7], "alpha": [0], "beta": [1, 2, 3], "gamma": [6]}.items():
        assert all(program(seed) in sides[package in chosen] for seed in seeds), package
    assert len(sides[0]) + len(sides[1]) == environment().about.bytes


def test_the_split_fills_what_is_asked_for_and_no_more():
    sizes = [(f"p{i}", 1 + i % 97 + (5000 if i == 3 else 0)) for i in range(500)]
    whole = sum(size for _, size in sizes)
    for fraction in (0.01, 0.1, 0.5):
        chosen = held_out(sizes, fraction)
        assert 0.98 * fraction < sum(size for name, size in sizes if name in chosen) / whole <= fraction
    more = held_out([*sizes, ("new", 10)], 0.1)
    assert len(more ^ held_out(sizes, 0.1)) <= 4  # one package more moves few others


def test_what_is_not_installed_is_named_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(code, "PACKAGES", ("numpy", "no-such-thing"))
    with pytest.raises(Refused, match=r"^data=code: no-such-thing not installed here: pip install .*data=f"):
        code.code_corpus(str(tmp_path))


@pytest.mark.rare
@full
def test_this_environment_has_some_hundred_megabytes(tmp_path):
    """And preparing it twice gives the same bytes."""
    one, other = (code.code_corpus(str(tmp_path / name)) for name in ("one", "other"))
    assert one.about == other.about
    assert one.about.bytes > 8e7
    assert one.about.counts["near duplicates"] > 0
    assert f"torch {distribution('torch').version.partition('+')[0]}" in one.about.origin
    chosen = held_out(one.about.groups, 0.1)
    assert 0.09 < sum(size for name, size in one.about.groups if name in chosen) / one.about.bytes <= 0.1
    training, validation = one.split(0.1)
    assert len(training.encode()) + len(validation.encode()) == one.about.bytes
