"""`inspect checkpoint=` shows the heads of a folder of every family that is known."""

from pathlib import Path

import pytest
from test_families import CASES, SIZES, theirs

from attnlab.cli.main import main
from attnlab.model.huggingface.families import FAMILIES

TEXT = "the quick brown fox the quick"
OLDEST = {"vocab_size": 31, "n_positions": 29, "n_embd": 24, "n_layer": 2, "n_head": 3}  # GPT-2's names


@pytest.mark.rare
@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_folder_of_each_family_is_looked_into(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "the": 1, "quick": 2, "brown": 3, "fox": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = theirs(kind, SIZES | CASES[kind][0] if CASES[kind] else OLDEST)
    model.save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert main(["inspect", f"checkpoint={tmp_path}", f"text={TEXT}", f"to={tmp_path / 'out'}"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert [line.split('"')[1] for line in said] == TEXT.split()
    assert (tmp_path / "out" / "inspect.html").is_file()
