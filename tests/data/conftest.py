import random
from functools import partial
from pathlib import Path

import pytest
import torch

from attnlab.data import text
from attnlab.data.tokenizers import Char

torch.set_num_threads(1)


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    """1009 characters with line breaks, accents, and an emoji of four bytes."""
    draw = random.Random(5)
    path = tmp_path / "novel.txt"
    path.write_bytes("".join(draw.choices("ab cdé\nfg—hij🙂", k=1009)).encode())
    return path


@pytest.fixture
def make(novel: Path, tmp_path: Path):
    """A text task over the novel; keywords replace the settings."""
    settings = {"length": 7, "val_fraction": 0.2, "val_windows": None, "cache": str(tmp_path / "cache")}

    def build(path: Path = novel, tokenizer=None, **changes):
        return text.file(str(path), tokenizer=tokenizer or Char(), **settings | changes)

    return build


@pytest.fixture
def task(make):
    return make()


@pytest.fixture
def recipe(make):
    """The same as what a yaml file gives to the data module."""
    return partial(make)
