"""What is found in checkpoints whose vocabulary is ill."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab_tool.checks import examine_checkpoint, examine_table, unreachable_tokens, verify_checkpoint
from tests.tiny_masked_lms import masked_lm, pieces


@pytest.fixture
def place(tmp_path):
    """A sound checkpoint with its tokenizer, and that tokenizer's vocabulary."""
    words = pieces(tmp_path)
    model = masked_lm(len(words.vocabulary) + 3).model
    model.save_pretrained(tmp_path)
    return tmp_path, model, words.vocabulary


def found(directory):
    return {check.name: check for check in examine_checkpoint(directory)}


def test_a_sound_checkpoint_has_no_findings(place):
    directory, _, _ = place
    checks = found(directory)
    assert all(check.is_good for check in checks.values()), checks
    assert "3 of them without a token" in checks["ids have rows"].detail
    assert "ties hold" in checks
    assert "special ids agree" in checks


def test_rows_that_never_learned_are_named(place):
    directory, model, vocabulary = place
    motor, sing, nothing = (vocabulary.ids_by_surface[name] for name in ("motor", "sing", "nothing"))
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table[motor] = table[sing]
        table[nothing] *= 0.01
    model.save_pretrained(directory)
    checks = found(directory)
    assert {name for name, check in checks.items() if not check.is_good} == {
        "rows differ",
        "rows have learned",
    }
    assert checks["rows differ"].detail == "sing = motor"
    assert "1 rows below 0.3 times the median norm" in checks["rows have learned"].detail
    assert checks["rows have learned"].detail.endswith(": nothing")


def test_ids_without_rows_are_named(place):
    _, model, vocabulary = place
    table = model.get_input_embeddings().weight.detach().numpy()[: len(vocabulary) - 2]
    check = next(examine_table(table, vocabulary, "decoder: "))
    assert (check.name, check.is_good) == ("decoder: ids have rows", False)
    assert check.detail.endswith(f"without a row: {', '.join(vocabulary.surfaces[-2:])}")


def test_tokens_that_merges_never_make_are_found(tmp_path):
    """`abc` would need `ab` and `c`, but `bc` is merged before; `cd` has no merge."""
    ids = {piece: i for i, piece in enumerate(["a", "b", "c", "d", "bc", "ab", "abc", "cd"])}
    made = Tokenizer(models.BPE(ids, [("b", "c"), ("a", "b"), ("ab", "c")]))
    made.save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_vocabulary(tmp_path)
    assert [vocabulary.surfaces[i] for i in unreachable_tokens(vocabulary)] == ["abc", "cd"]
    for identity, surface in enumerate(vocabulary.surfaces):
        is_yielded = made.encode(surface).ids == [identity]
        assert is_yielded == (identity not in unreachable_tokens(vocabulary))
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    rows[6] = rows[7]  # of no interest: no text reads them
    checks = {check.name: check for check in examine_table(rows, vocabulary)}
    assert checks["rows differ"].is_good
    assert checks["tokens are reachable"].detail.startswith("2 tokens that no text yields: abc, cd")


@pytest.mark.parametrize("judge", [examine_checkpoint, verify_checkpoint])
def test_weights_that_are_not_there_are_not_judged(place, judge):
    """The values of a new model, drawn in their place, would look as if they had learned."""
    directory, _, _ = place
    save_file({}, directory / "model.safetensors", metadata={"format": "pt"})
    [check] = judge(directory)
    assert not check.is_good
    assert "no weights for" in check.detail


def test_old_weights_that_are_not_there_are_refused(place):
    directory, _, _ = place
    (directory / "model.safetensors").unlink()
    torch.save({}, directory / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"no weights for .*word_embeddings"):
        examine_checkpoint(directory)
