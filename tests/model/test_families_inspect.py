"""`inspect checkpoint=` shows the heads of a checkpoint of every family."""

from pathlib import Path

import pytest
from test_families import CASES, SIZES, make_hf_model

from attnlab.cli.main import main
from attnlab.model.huggingface.families import FAMILIES

TEXT = "the quick brown fox the quick"
GPT2_SIZES = {"vocab_size": 31, "n_positions": 29, "n_embd": 24, "n_layer": 2, "n_head": 3}  # GPT-2's names


@pytest.mark.rare
@pytest.mark.usefixtures("blank_charts")
@pytest.mark.parametrize("kind", FAMILIES)
def test_inspect_reads_a_checkpoint_of_each_family(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "the": 1, "quick": 2, "brown": 3, "fox": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = make_hf_model(kind, SIZES | CASES[kind][0] if CASES[kind] else GPT2_SIZES)
    model.save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert main(["inspect", f"checkpoint={tmp_path}", f"text={TEXT}", f"to={tmp_path / 'out'}"]) == 0
    arrow_lines = [line for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert [line.split('"')[1] for line in arrow_lines] == TEXT.split()
    assert (tmp_path / "out" / "inspect.html").is_file()
