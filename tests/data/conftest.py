"""Fixtures: a small text and text tasks over it."""

import random
from functools import partial
from pathlib import Path

import pytest
import torch

from attnlab.data import text
from attnlab.data.tokenizers import CharTokenizer

torch.set_num_threads(1)


@pytest.fixture
def novel_path(tmp_path: Path) -> Path:
    """1009 characters with line breaks, accents, and an emoji of four bytes."""
    generator = random.Random(5)
    path = tmp_path / "novel.txt"
    path.write_bytes("".join(generator.choices("ab cdé\nfg—hij🙂", k=1009)).encode())
    return path


@pytest.fixture
def make_text_task(novel_path: Path, tmp_path: Path):
    """Build a text task over the novel; keywords replace the settings."""
    settings = {
        "length": 7, "val_fraction": 0.2, "val_windows": None, "cache": str(tmp_path / "cache"),
        "validation_path": None, "text_key": "text", "normalize": None, "allow_overlap": False,
    }  # fmt: skip

    def build(path: Path = novel_path, tokenizer=None, **changes):
        return text.file_text(str(path), tokenizer=tokenizer or CharTokenizer(), **settings | changes)

    return build


@pytest.fixture
def text_task(make_text_task):
    return make_text_task()


@pytest.fixture
def text_task_factory(make_text_task):
    """The factory that the data module takes, as a yaml file gives it."""
    return partial(make_text_task)
