"""Tiny random directories of translation models as released ones, each with a tokenizer of its own."""

import json
import shutil
from pathlib import Path

import sentencepiece
import torch

from nlgraft.nn.conversion.checkpoint import from_hugging_face
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model_config import GenerationConfig
from tests.tensors import assert_near
from tests.tiny_models import tiny_translator

SPM = "sentencepiece.bpe.model"
FAMILIES = {
    "mbart": ("mbart", "MBartTokenizer", ("en_XX", "de_DE")),
    "mbart_50": ("mbart", "MBart50Tokenizer", ("en_XX", "de_DE")),
    "m2m_100": ("m2m_100", "M2M100Tokenizer", ("en", "de")),
    "nllb": ("m2m_100", "NllbTokenizer", ("eng_Latn", "deu_Latn")),
}
"""Architecture, class of the tokenizer, names of two languages."""


def learn_pieces(path: Path, lines, size: int = 120, **options) -> list[str]:
    """Learn a SentencePiece model from lines; gives its pieces."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=size, minloglevel=2, **options
        )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def write_mbart(directory: Path, lines) -> int:
    """Write an mBART of cc25's format, with three languages and a mask; gives its number of pieces."""
    size = len(learn_pieces(directory / SPM, lines))
    tiny_translator("mbart", vocab_size=size + 5, max_position_embeddings=256).save_pretrained(directory)
    return size


def write_multilingual(directory: Path, family: str, lines) -> None:
    """Write a model of a family with languages and its tokenizer; M2M-100's ids are in another order."""
    import transformers

    architecture, tokenizer_class, languages = FAMILIES[family]
    kind = "unigram" if architecture == "mbart" else "bpe"
    pieces = learn_pieces(directory / SPM, lines, model_type=kind)
    settings = {"tokenizer_class": tokenizer_class}
    if family == "nllb":
        settings["additional_special_tokens"] = ["fra_Latn", *languages]
    if family == "m2m_100":
        ids = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *reversed(pieces[4:])])}
        (directory / "vocab.json").write_text(json.dumps(ids))  # lacks a piece: unknown text
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"model_type": architecture}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    size = max(tokenizer.get_vocab().values()) + 1 if family != "m2m_100" else len(pieces) + 110
    start = {} if family == "mbart" else {"decoder_start_token_id": 2}
    model = tiny_translator(architecture, vocab_size=size, max_position_embeddings=256, **start)
    model.save_pretrained(directory)


def write_marian(directory: Path, source_lines, target_lines, **settings) -> None:
    """Write an OPUS-MT: two SentencePiece models, one vocabulary in an order of its own, the padding last."""
    source = learn_pieces(directory / "source.spm", source_lines, 90)
    target = learn_pieces(directory / "target.spm", target_lines, 100)
    pieces = sorted({*source[3:], *target[3:]}, key=lambda piece: piece[::-1])
    ids = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces[1:], "<pad>"])}  # lacks one
    (directory / "vocab.json").write_text(json.dumps(ids))
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "a", "target_lang": "b"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    special = {"pad_token_id": len(ids) - 1, "decoder_start_token_id": len(ids) - 1, "eos_token_id": 0}
    special |= {"forced_eos_token_id": 0, "vocab_size": len(ids), "max_position_embeddings": 256}
    tiny_translator("marian", **special | settings).save_pretrained(directory)


def check_alike(directory: Path, family: str, model, batch, lines, config: GenerationConfig) -> None:
    """Compare a batch of ours with their tokens, by the row of each, then logits and greedy outputs.

    Args:
        directory: A checkpoint of ``write_multilingual``.
        family: Its family.
        model: What was made of it.
        batch: The first lines, as ours reads them.
        lines: Text of source and target.
        config: How ours begins a target.
    """
    import transformers

    reference = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    table, reference_table = (
        each.source_embedding.table.weight.detach() for each in (model, from_hugging_face(reference)[0])
    )
    rows = torch.tensor([int((reference_table == row).all(1).nonzero()[0, 0]) for row in table])
    first, second = FAMILIES[family][2]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, src_lang=first, tgt_lang=second)
    expected = tokenizer(lines[0], text_target=lines[1])
    source, target = batch.sources[0], batch.target_input
    if family == "mbart":  # text, end, language; the decoder begins with the language
        starts = [[label[-1], *label[:-2]] for label in expected["labels"]]
    else:  # language, text, end behind the end of a sentence
        starts = [[2, *label[:-1]] for label in expected["labels"]]
    for i in range(len(source.ids)):
        assert rows[source.ids[i][source.valid[i]]].tolist() == expected["input_ids"][i]
        assert rows[target.ids[i][target.valid[i]]].tolist() == starts[i]
    with torch.no_grad():
        logits = model.logits(model(batch))[target.valid]
        reference_logits = reference(
            input_ids=rows[source.ids],
            attention_mask=source.valid.long(),
            decoder_input_ids=rows[target.ids],
        ).logits[target.valid]
    assert_near(logits, reference_logits[:, rows], 1e-4)
    _check_greedy(model, reference, source, rows, config)


def _check_greedy(model, reference, source, rows, config) -> None:
    """Greedy outputs agree; tokens that our vocabulary lacks are forbidden there, as the padding is."""
    greedy = GenerationConfig(
        beam=1,
        max_length_ratio=0,
        max_length_offset=9,
        start_id=config.start_id,
        forced_ids=config.forced_ids,
    )
    outputs = [rows[best[0].ids].tolist() for best in beam_search(model, [source], config=greedy)]
    prompt = rows[list(greedy.prompt)].expand(len(outputs), -1)
    outside = {*range(reference.config.vocab_size)} - {*rows.tolist()} | {1}
    reference_ids = reference.generate(
        input_ids=rows[source.ids],
        attention_mask=source.valid.long(),
        decoder_input_ids=prompt,
        decoder_start_token_id=int(prompt[0, 0]),
        suppress_tokens=sorted(outside),
        max_new_tokens=10,  # with the end that their settings force
        num_beams=1,
    )[:, len(greedy.prompt) :].tolist()
    ended = [row[: row.index(2)] if 2 in row else row[:9] for row in reference_ids]
    assert [ids[:9] for ids in outputs] == ended


def copy_of(directory: Path, where: Path) -> Path:
    """Copy a checkpoint, for a test that breaks it."""
    return Path(shutil.copytree(directory, where))
