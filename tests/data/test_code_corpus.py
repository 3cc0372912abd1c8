"""The corpus of installed Python code: contents, order, split and caching."""

import random
from importlib.metadata import distribution, distributions

import pytest
from sampling import full

from attnlab.data import text
from attnlab.data.corpora import code
from attnlab.data.corpora.corpus import choose_validation_groups
from attnlab.data.tokenizers import ByteTokenizer
from attnlab.errors import InvalidConfig


def make_program(seed, lines=20):
    generator = random.Random(seed)
    return "".join(f"    x{generator.randrange(10**6)} = {generator.random()}\n" for _ in range(lines))


FILES = {
    "beta/__init__.py": make_program(1),
    "beta/part/deep.py": make_program(2),
    "beta/copied.py": make_program(0),  # a copy of alpha's file
    "beta/nearly.py": make_program(3) + "one = 1\n",  # a near duplicate of the library's zoo.py
    "beta/nothing.py": " \n",
    "beta/latin.py": b"name = 'caf\xe9'\n",
    "beta/version.py": "made = 'by a build'\n",
    "beta/part_pb2.py": "DESCRIPTOR = b''\n",
    "beta/tests/checks.py": make_program(4),
    "beta/test_it.py": make_program(5),
    "beta/notes.txt": "no code\n",
    "gamma.py": make_program(6),
}
LIBRARY = {
    "zoo.py": make_program(3),
    "aged/__init__.py": make_program(7),
    "aged/test/more.py": make_program(8),
    "site-packages/other.py": make_program(9),
    "config-3.11-linux/made.py": make_program(10),
    "pydoc_data/topics.py": make_program(11),
    "_sysconfigdata__linux.py": make_program(12),
}


def write_files(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def install(site, name, version, files):
    write_files(site, files)
    info = f"{name}-{version}.dist-info"
    record = "".join(f"{file},,\n" for file in reversed([*files, f"{name}/gone.py", f"../bin/{name}.py"]))
    write_files(site, {f"{info}/METADATA": f"Name: {name}\nVersion: {version}\n", f"{info}/RECORD": record})


@pytest.fixture
def make_environment_corpus(tmp_path, monkeypatch):
    """Build a library, `alpha` and `beta` in a folder of their own, and load their corpus."""

    def build(name="here", version="2.0"):
        home = tmp_path / name
        write_files(home / "lib", LIBRARY)
        install(home / "site", "alpha", version, {"alpha/__init__.py": make_program(0)})
        install(home / "site", "beta", "1", FILES)
        monkeypatch.setattr(code, "LIBRARY_PATH", str(home / "lib"))
        monkeypatch.setattr(code, "PACKAGES", ("alpha", "beta"))
        packages = {package.name: package for package in distributions(path=[str(home / "site")])}
        monkeypatch.setattr(code, "distribution", packages.__getitem__)
        return code.load_code_corpus(str(tmp_path / "cache"))

    return build


def test_source_files_are_ordered_and_tests_and_duplicates_dropped(make_environment_corpus):
    metadata = make_environment_corpus().metadata
    near_duplicate = make_program(3) + "one = 1\n"  # comes first, so the library's file is the duplicate
    packages = {
        "aged": [make_program(7)],
        "alpha": [make_program(0)],
        "beta": [make_program(1), near_duplicate, make_program(2)],
        "gamma": [make_program(6)],
    }
    text = "".join("\n".join(files) + "\n" for files in packages.values())
    assert make_environment_corpus().load_text() == text
    assert [name for name, _ in metadata.groups] == list(packages)
    assert metadata.bytes == len(text) == sum(size for _, size in metadata.groups)
    assert metadata.counts == {
        "files kept": 6, "files listed": 12, "missing": 2, "empty": 1, "not UTF-8": 1, "duplicates": 1,
        "near duplicates": 1,
    }  # fmt: skip


def test_equal_versions_give_equal_corpora(make_environment_corpus):
    one, other = make_environment_corpus("one"), make_environment_corpus("other")
    assert one.metadata == other.metadata
    assert one.read() == other.read()
    assert make_environment_corpus("built", version="2.0+cpu").metadata == one.metadata
    newer_metadata = make_environment_corpus("newer", version="2.1").metadata
    assert newer_metadata.fingerprint != one.metadata.fingerprint
    assert newer_metadata.sha256 == one.metadata.sha256
    assert "alpha 2.1, beta 1, files" in newer_metadata.origin


def test_a_prepared_corpus_is_cached(make_environment_corpus, monkeypatch, tmp_path):
    first = make_environment_corpus()
    monkeypatch.setattr(code, "list_source_files", lambda *_: pytest.fail("listed again"))
    assert code.load_code_corpus(str(tmp_path / "cache")).metadata == first.metadata


def test_a_split_never_divides_a_package(make_environment_corpus, tmp_path):
    task = text.TextTask(
        make_environment_corpus(), ByteTokenizer(), 8, 0.3, None, True, str(tmp_path / "cache")
    )
    splits = [bytes(task.train_ids).decode(), bytes(task.val_ids).decode()]
    validation_packages = choose_validation_groups(make_environment_corpus().metadata.groups, 0.3)
    assert 0 < len(validation_packages) < 4
    for package, seeds in {"aged": [7], "alpha": [0], "beta": [1, 2, 3], "gamma": [6]}.items():
        assert all(make_program(seed) in splits[package in validation_packages] for seed in seeds), package
    assert len(splits[0]) + len(splits[1]) == make_environment_corpus().metadata.bytes


def test_validation_groups_fill_the_fraction_and_no_more():
    sizes = [(f"p{i}", 1 + i % 97 + (5000 if i == 3 else 0)) for i in range(500)]
    total = sum(size for _, size in sizes)
    for fraction in (0.01, 0.1, 0.5):
        validation_groups = choose_validation_groups(sizes, fraction)
        assert (
            0.98 * fraction
            < sum(size for name, size in sizes if name in validation_groups) / total
            <= fraction
        )
    with_new_group = choose_validation_groups([*sizes, ("new", 10)], 0.1)
    assert len(with_new_group ^ choose_validation_groups(sizes, 0.1)) <= 4  # a new package moves few others


def test_an_error_names_missing_packages_and_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(code, "PACKAGES", ("numpy", "no-such-thing"))
    with pytest.raises(
        InvalidConfig,
        match=r"^data=code needs packages that are not installed \(no-such-thing\): run .pip .*data=f",
    ):
        code.load_code_corpus(str(tmp_path))


@pytest.mark.rare
@full
def test_this_environment_has_some_hundred_megabytes(tmp_path):
    """Preparing the corpus twice also gives the same bytes."""
    corpus, second_corpus = (code.load_code_corpus(str(tmp_path / name)) for name in ("one", "other"))
    assert corpus.metadata == second_corpus.metadata
    assert corpus.metadata.bytes > 8e7
    assert corpus.metadata.counts["near duplicates"] > 0
    assert f"torch {distribution('torch').version.partition('+')[0]}" in corpus.metadata.origin
    validation_groups = choose_validation_groups(corpus.metadata.groups, 0.1)
    assert (
        0.09
        < sum(size for name, size in corpus.metadata.groups if name in validation_groups)
        / corpus.metadata.bytes
        <= 0.1
    )
    training, validation = corpus.split_text(0.1)
    assert len(training.encode()) + len(validation.encode()) == corpus.metadata.bytes
