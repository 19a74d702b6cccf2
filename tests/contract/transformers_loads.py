"""What transformers makes of an exported directory, beside what the exported model itself says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nlgraft.evaluation.inputs import Inputs
from nlgraft.export.exported import ExportedModel
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.stages.run.seq2seq_stages import encoded_inputs
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.stages.seq2seq_graph import TranslateSettings
from nlgraft.text.corpora import Corpus
from nlgraft.training.models import read_model


def _ours(directory: Path, lines: Sequence[str]) -> tuple[Any, TranslateSettings, Inputs, dict[str, Path]]:
    described = json.loads((directory / "nlgraft.json").read_text("utf-8"))
    settings = TranslateSettings.model_validate_json(json.dumps(described["settings"]))
    folders = {name: directory / "nlgraft" / at for name, at in described["tokenizers"].items()}
    model = read_model(directory / "nlgraft" / "model").eval()
    roles = int(described["columns"][0].removeprefix("source ")) + 1
    return (
        model,
        settings,
        encoded_inputs(settings, Corpus([[*lines]] * roles), folders, model.room("source")),
        folders,
    )


def assert_translates_alike(directory: Path, lines: Sequence[str]) -> None:
    """The same ids of the text, and the same logits of the next token, at every position."""
    import transformers

    model, settings, inputs, folders = _ours(directory, lines)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    expected = [row.tolist() for row in inputs.sources[0]]
    # A line that is cut keeps its end here and loses it there: the card says so.
    longest = settings.max_tokens or 10**6
    plain = [ids for ids in tokenizer([*lines])["input_ids"] if len(ids) < longest]
    assert plain == [ids for ids in expected if len(ids) < longest]
    target = directory / "decoder_tokenizer"
    target_tokenizer = transformers.AutoTokenizer.from_pretrained(target if target.is_dir() else directory)
    our_tokenizer = open_tokenizer(folders[settings.view.target.stream])
    ids = [[settings.view.target_start, *range(8, 14)], [settings.view.target_start, 9]]
    decoded = target_tokenizer.decode(ids[0][1:], skip_special_tokens=True).strip()
    assert [decoded] == our_tokenizer.decode([ids[0][1:]])
    source, target_ids = Tokens.from_lists(expected[:2], 0), Tokens.from_lists(ids, 0)
    their_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    with torch.no_grad():
        logits = model.logits(model(Batch([source], target_ids, target_ids.ids)))
        their_logits = their_model(
            input_ids=source.ids, attention_mask=source.valid.long(), decoder_input_ids=target_ids.ids
        ).logits
    valid = target_ids.valid
    torch.testing.assert_close(their_logits[valid], logits[valid], rtol=0, atol=1e-5)


def assert_classifies_alike(directory: Path, model: ExportedModel, lines: Sequence[str]) -> None:
    """The same probabilities of the same labels from the text itself."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    their_model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    labels, probabilities_NC = model.probabilities(lines)
    assert [their_model.config.id2label[index] for index in range(len(labels))] == labels
    encoded = tokenizer([*lines], padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        their_probabilities = their_model(**encoded).logits.double().softmax(-1)
    torch.testing.assert_close(their_probabilities, torch.from_numpy(probabilities_NC), rtol=0, atol=1e-5)


def assert_loads(directory: Path, line: str) -> None:
    """Every weight is there, and its tokenizer frames a line."""
    import transformers

    [name] = json.loads((directory / "config.json").read_text("utf-8"))["architectures"]
    _, report = getattr(transformers, name).from_pretrained(directory, output_loading_info=True)
    assert not report["missing_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    ids = tokenizer(line)["input_ids"]
    if name.endswith("ForCausalLM"):
        assert tokenizer.decode(ids, skip_special_tokens=True) == line
        return
    assert ids[0] != ids[-1]
    assert len(ids) == len(tokenizer(line, add_special_tokens=False)["input_ids"]) + 2
