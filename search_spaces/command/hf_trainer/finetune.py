"""Finetune a classifier with the Trainer of transformers: a tiny random BERT, or any checkpoint with --model."""

import csv
import json
from dataclasses import dataclass, field

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

LABELS = ["animal", "food", "tool"]
LENGTH = 12


@dataclass
class ModelArguments:
    """What is finetuned, on which text."""

    data: str = field(metadata={"help": "CSV file with the columns split, text and label"})
    model: str = field(default="", metadata={"help": "checkpoint; empty: a tiny BERT with random weights"})
    hidden_dropout: float = field(default=0.1)


class Letters:
    """Encodes a word as its letters, so that the tiny model needs no tokenizer file."""

    def __call__(self, texts):
        ids = [[1 + ord(letter) % 60 for letter in text[:LENGTH]] for text in texts]
        return {
            "input_ids": [row + [0] * (LENGTH - len(row)) for row in ids],
            "attention_mask": [[1] * len(row) + [0] * (LENGTH - len(row)) for row in ids],
        }


class LogLines(TrainerCallback):
    """Appends each evaluation as a line of JSON, which nlgraft reads while the script runs."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        with open("metrics.jsonl", "a") as file:
            print(json.dumps({"step": state.global_step, **metrics}), file=file)


class Lines(torch.utils.data.Dataset):
    def __init__(self, rows, encode):
        self.encoded = encode([row["text"] for row in rows])
        self.labels = [LABELS.index(row["label"]) for row in rows]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        values = {name: torch.tensor(column[index]) for name, column in self.encoded.items()}
        return {**values, "labels": torch.tensor(self.labels[index])}


model_args, args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
set_seed(args.seed)
with open(model_args.data, newline="") as file:
    rows = list(csv.DictReader(file))
if model_args.model:
    tokenizer = AutoTokenizer.from_pretrained(model_args.model)

    def encode(texts):
        return tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH)

    model = AutoModelForSequenceClassification.from_pretrained(model_args.model, num_labels=len(LABELS))
else:
    encode = Letters()
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=model_args.hidden_dropout,
        num_labels=len(LABELS),
    )
    model = BertForSequenceClassification(config)
parts = {split: [row for row in rows if row["split"] == split] for split in ("train", "dev", "test")}
data = {split: Lines(part, encode) for split, part in parts.items()}
trainer = Trainer(
    model, args, train_dataset=data["train"], eval_dataset=data["dev"], callbacks=[LogLines()]
)
trainer.train()
with open("items.csv", "w", newline="") as file:
    out = csv.writer(file)
    out.writerow(["item", "metric", "value"])
    for split in ("dev", "test"):
        predicted = trainer.predict(data[split]).predictions.argmax(-1)
        for row, label in zip(parts[split], predicted, strict=True):
            out.writerow([row["text"], f"{split}/item.accuracy", int(LABELS[label] == row["label"])])
trainer.save_model("model")
