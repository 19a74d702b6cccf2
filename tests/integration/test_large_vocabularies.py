"""Vocabularies and checkpoints of the size of large language models: memory, reachability, encodings."""

import os
import random
from pathlib import Path

import pytest
import tokenizers
import transformers

from nlgraft.text.files import read_lines
from nlgraft.vocab_tool.apply import apply_plan
from nlgraft.vocab_tool.changed import extend, prune
from nlgraft.vocab_tool.checks import examine_checkpoint, verify_checkpoint
from nlgraft.vocab_tool.plan_exchange import PlanRequest, plan_transfer
from tests.processes import python
from tests.sharded_checkpoints import write_shards
from tests.tiny_checkpoints import learn_bytes

DATA = Path(os.environ.get("NLGRAFT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "debian"
LONGEST_CHARS = 10_000
END = "<|endoftext|>"
CHECKS = ("examine_checkpoint", "verify_checkpoint")
MEASURED = """
import sys
from pathlib import Path
import transformers
from transformers import LlamaForCausalLM, conversion_mapping
from nlgraft.text.files import read_lines
from nlgraft.vocab_tool.apply import apply_plan
from nlgraft.vocab_tool.checks import examine_checkpoint
from nlgraft.vocab_tool.checks import verify_checkpoint

def memory(field):
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) * 1024

before = memory("VmRSS")
exec(sys.argv[1])
print(memory("VmHWM") - before)
"""
"""Prints the peak memory of a process beyond what it had after its imports (``ru_maxrss`` of a child process
begins with its parent's)."""


def peak_bytes(call):
    """Measure a call in a process of its own."""
    return int(python("-c", MEASURED, call).stdout.splitlines()[-1])


def learn_bpe(lines, size, directory):
    """Learn a byte-level BPE and save it as transformers does."""
    made = learn_bytes(lines, size, [END])
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END).save_pretrained(directory)
    return made


def random_lines(count):
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnoprstuvwyz", k=draw.randint(2, 9))) for _ in range(count)]
    return [" ".join(draw.choices(words, k=10)) for _ in range(count)]


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(
    ("size", "width", "num_layers", "shard_bytes"),
    [(600, 64, 4, 100_000), pytest.param(32_000, 2048, 15, 400_000_000, marks=pytest.mark.slow)],
)
def test_a_checkpoint_in_many_files(size, width, num_layers, shard_bytes, is_tied, tmp_path):
    """1.5 GB in files of 400 MB, memory of one file and the tables.

    This holds for the exchange, for doctor and for verify.
    """
    is_large = size > 10_000
    old = tmp_path / "old"
    learned = learn_bpe(random_lines(size // 4), size - 10, old)
    kept = random_lines(size // 4)[: size // 40]
    (tmp_path / "text").write_text("\n".join(kept))
    prune(str(old), [tmp_path / "text"], tmp_path / "pruned")
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=2 * width + 1536 * is_large,
        num_hidden_layers=num_layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=is_tied,
    )
    sizes = write_shards(old, config, shard_bytes)
    assert len(sizes) >= 4
    planned = plan_transfer(PlanRequest(str(old), str(tmp_path / "pruned")), tmp_path / "plan")
    assert set(planned.plan.counts()) == {"copy", "special"}
    out = tmp_path / "out"
    apply = f"apply_plan(Path({str(tmp_path / 'plan')!r}), {str(old)!r}, Path({str(out)!r}), multiple=64)"
    if is_large:
        assert sum(sizes) > 1.4e9
        tables = 2 * size * width * (1 if is_tied else 2)
        checks = (f"assert all(c.is_good for c in {name}({str(out)!r}))" for name in CHECKS)
        peaks = [peak_bytes(call) for call in (apply, *checks)]
        print(f"peaks {[round(peak / 1e6) for peak in peaks]} MB, largest file {max(sizes)}, {tables=}")
        assert max(peaks) <= 1.3 * max(sizes) + tables
    else:
        apply_plan(tmp_path / "plan", str(old), out, multiple=64)
        checks = [*verify_checkpoint(out), *examine_checkpoint(out)]
        assert [check for check in checks if not check.is_good] == []
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size % 64 == 0
    assert len(tokenizer) <= model.config.vocab_size < size
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is is_tied
    inputs = tokenizer(kept[0], return_tensors="pt")
    assert tokenizer.convert_ids_to_tokens(inputs.input_ids[0].tolist()) == learned.encode(kept[0]).tokens
    made = model.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert made.max() < len(tokenizer)


@pytest.mark.slow
def test_a_vocabulary_of_150_000_tokens(tmp_path):
    """Pruned and extended, every token is reachable and text of kept tokens is as before."""
    if not DATA.is_dir():
        pytest.skip(f"real text is missing: set NLGRAFT_DATA (looked at {DATA})")
    files = [*DATA.glob("*/train.body.gz"), *DATA.glob("*/train.short.gz"), *DATA.glob("*/train.??.gz")]
    lines = [line for file in sorted(files) for line in read_lines(str(file), LONGEST_CHARS).lines]
    before = learn_bpe(lines, 150_000, tmp_path / "old")
    assert before.get_vocab_size() == 150_000
    prune(str(tmp_path / "old"), [DATA / "en" / "test.body.gz"], tmp_path / "pruned")
    done = extend(
        str(tmp_path / "old"),
        [DATA.parent / "multi30k" / "train.cs.gz"],
        tmp_path / "extended",
        num_tokens=10_000,
    )
    assert done.new_size == 160_000
    pruned, extended = (
        tokenizers.Tokenizer.from_file(str(tmp_path / name / "tokenizer.json"))
        for name in ("pruned", "extended")
    )
    for made in (pruned, extended):
        spelled = {token: [part.value for part in made.model.tokenize(token)] for token in made.get_vocab()}
        assert [token for token, parts in spelled.items() if parts != [token] and token != END] == []
    assert before.get_vocab().items() <= extended.get_vocab().items()
    kept = set(pruned.get_vocab())
    assert len(kept) < 40_000
    num_compared = 0
    for line in read_lines(str(DATA / "en" / "dev.body.gz"), LONGEST_CHARS).lines:
        for words in (line, *line.split()):
            tokens = before.encode(words).tokens
            if set(tokens) <= kept:
                num_compared += 1
                assert pruned.encode(words).tokens == tokens
    assert num_compared > 10_000
