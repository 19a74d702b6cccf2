"""Tiny checkpoints of seven architectures with tokenizers of their own, and `nlgraft vocab` run on them."""

import json
import random
import shutil
import warnings
from pathlib import Path

import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tests import tiny_architectures as tiny
from tests.commands import nlgraft

rng = random.Random(3)
STEMS = ["".join(rng.choices("abdeiklmnorstu", k=rng.randint(2, 5))) for _ in range(40)]
WORDS = ["".join(rng.choices(STEMS, k=rng.randint(1, 3))) for _ in range(150)]
LINES = [" ".join(rng.choices(WORDS, k=8)) for _ in range(300)]
OTHER_LINES = [" ".join(rng.choices(STEMS + WORDS[:40], k=8)) for _ in range(300)]
DECODER = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 16, "max_position_embeddings": 64}
DECODER |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LANGUAGES = ["en_XX", "de_DE"]


def run(*arguments: str | Path, code: int = 0):
    """Run `nlgraft vocab` with arguments; it must end with this code, and without a traceback."""
    return nlgraft("vocab", *arguments, code=code)


def train_spm(prefix: Path, lines, size: int = 120, **options) -> Path:
    """Learn a SentencePiece model from lines; gives its path."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(prefix),
        vocab_size=size,
        num_threads=1,
        minloglevel=2,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        hard_vocab_limit=False,
        **options,
    )
    return prefix.with_suffix(".model")


def bert_tokenizer(directory: Path, lines) -> None:
    """Write a WordPiece tokenizer as BERT's."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=BERT_SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    ids = tokenizer.get_vocab()
    (directory / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.__getitem__)) + "\n")
    transformers.BertTokenizer(vocab=ids).save_pretrained(directory)


def learn_bytes(lines, size: int, specials=()) -> tokenizers.Tokenizer:
    """Learn a byte-level BPE."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(specials),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def gpt2_tokenizer(directory: Path, lines) -> None:
    """Write a byte-level BPE tokenizer as GPT-2's."""
    end = "<|endoftext|>"
    tokenizer = learn_bytes(lines, 350, [end])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=end)
    fast.save_pretrained(directory)


def marian_tokenizer(directory: Path, lines) -> None:
    """Write SentencePiece models and ids as Marian's, the padding last."""
    model = train_spm(directory / "x", lines)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [processor.id_to_piece(i) for i in range(4, processor.get_piece_size())]
    ids = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}  # as released ones are
    (directory / "vocab.json").write_text(json.dumps(ids))
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(model, directory / name)
    for leftover in ("x.model", "x.vocab"):
        (directory / leftover).unlink()
    config = {"tokenizer_class": "MarianTokenizer", "model_max_length": 64}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def unigram_tokenizer(directory: Path, lines, specials=()) -> None:
    """Write a unigram tokenizer as T5's, or, with language tokens, as mBART's."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    names = ["<s>", "<pad>", "</s>", "<unk>", *specials]
    trainer = trainers.UnigramTrainer(
        vocab_size=130, special_tokens=names, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    if specials:  # mBART: text, end, language
        ids = {name: tokenizer.token_to_id(name) for name in ("</s>", specials[0])}
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"$A </s> {specials[0]}", pair=f"$A $B </s> {specials[0]}", special_tokens=[*ids.items()]
        )
    else:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
        )
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **roles
    )
    fast.save_pretrained(directory)


def sentencepiece_bpe_tokenizer(directory: Path, lines) -> None:
    """Write a BPE on text with ▁ for spaces and bytes for unknown characters, as Gemma's."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=names, show_progress=False)
    # merges stay within words, as those of a text without spaces could not
    tokenizer.train_from_iterator([f" {word}" for line in lines for word in line.split()], trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [entry for entry in document["added_tokens"] if entry["id"] < 5]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 2)]
    )
    roles = {name: f"<{name.split('_')[0]}>" for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(directory)


def bert(ids):
    return transformers.BertForMaskedLM(
        tiny.bert_config(vocab_size=len(ids), max_position_embeddings=64, pad_token_id=ids["[PAD]"])
    )


def gpt2(ids):
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), ids["<|endoftext|>"])
    return tiny.gpt2(vocab_size=len(ids), n_positions=64, **ends)


def special_ids(ids):
    """Ids of padding and end as configurations of an encoder-decoder name them."""
    padding = dict.fromkeys(("pad_token_id", "decoder_start_token_id"), ids["<pad>"])
    return {**padding, **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), ids["</s>"])}


def marian(ids):
    sizes = {"vocab_size": len(ids), "max_position_embeddings": 64, "bos_token_id": None}
    model = tiny.marian(**sizes, **special_ids(ids))
    model.final_logits_bias.normal_()
    return model


def mbart(ids):
    special = special_ids(ids) | {"decoder_start_token_id": ids["de_DE"], "bos_token_id": ids["<s>"]}
    sizes = tiny.seq2seq_options() | {"vocab_size": len(ids), "max_position_embeddings": 64}
    return transformers.MBartForConditionalGeneration(transformers.MBartConfig(**sizes | special))


def t5(ids):
    return tiny.t5(vocab_size=len(ids), **special_ids(ids))


def qwen3(ids):
    end = ids["<|endoftext|>"]
    config = transformers.Qwen3Config(
        vocab_size=len(ids) + 10, tie_word_embeddings=False, eos_token_id=end, bos_token_id=end, **DECODER
    )
    return transformers.Qwen3ForCausalLM(config)


def gemma3(ids):
    special = {f"{role}_token_id": ids[f"<{role}>"] for role in ("pad", "bos")}
    ends = [ids["<eos>"], ids["<end_of_turn>"]]
    config = transformers.Gemma3TextConfig(vocab_size=len(ids), eos_token_id=ends, **special, **DECODER)
    return transformers.Gemma3ForCausalLM(config)


KINDS = {
    "bert": (bert_tokenizer, bert),
    "gpt2": (gpt2_tokenizer, gpt2),
    "marian": (marian_tokenizer, marian),
    "mbart": (lambda directory, lines: unigram_tokenizer(directory, lines, LANGUAGES), mbart),
    "t5": (unigram_tokenizer, t5),
    "qwen3": (gpt2_tokenizer, qwen3),
    "gemma3": (sentencepiece_bpe_tokenizer, gemma3),
}


def save_noisy(directory: Path, make_model):
    """Write a model for the tokenizer of a directory, of whose weights none is as it was drawn; return it."""
    torch.manual_seed(0)
    model = make_model(quiet(transformers.AutoTokenizer.from_pretrained, directory).get_vocab())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


def released(directory: Path, kind: str):
    """Write a checkpoint with a tokenizer of its own; return the model."""
    write_tokenizer, make_model = KINDS[kind]
    directory.mkdir()
    write_tokenizer(directory, LINES)
    return save_noisy(directory, make_model)


def quiet(action, *arguments, **options):
    """Call without Marian's wish for sacremoses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*sacremoses")
        return action(*arguments, **options)


def edit(path: Path, **changes) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def load(directory: Path):
    """Open a checkpoint and its tokenizer as its users do."""
    config = transformers.AutoConfig.from_pretrained(directory)
    model = getattr(transformers, config.architectures[0]).from_pretrained(directory)
    return model.eval(), quiet(transformers.AutoTokenizer.from_pretrained, directory)
