"""A registered study in a directory of its own, and edits of it as its user makes them."""

import json
import sys
from contextlib import suppress
from typing import ClassVar

import numpy as np

import nlgraft
from nlgraft.basics.errors import TrialFailed
from nlgraft.basics.strict_config import ReadWhen, StrictConfig, as_read
from nlgraft.evaluation.artifact import write_evaluation
from nlgraft.evaluation.scores import evaluate_text
from nlgraft.pipeline.stage import NullReporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.runs.run import read_result
from nlgraft.stages import text_graph
from nlgraft.study.data.design import cells
from nlgraft.study.reading.documents import parse, write_yaml
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import CorpusConfig
from nlgraft.text.files import InputPath, file_digest

SYSTEM = "registered_system"
RIGHT = {"plain": 0.5, "avg": 0.7, "att": 0.8}


class Config(StrictConfig):
    """Settings of a system that guesses the references."""

    READ_WHEN: ClassVar[ReadWhen] = {"patience": ({"arm": ("att",)},)}

    data: CorpusConfig
    arm: str = "plain"
    lr: float = 1e-3
    steps: int = 10
    patience: int = 1
    dictionary: InputPath | None = None


def stage_graph(config, *, seed, splits):
    run = f"{SYSTEM}:{{}}".format
    settings = as_read(config).model_dump(mode="json", exclude={"data", "dictionary"})
    if config.dictionary is not None:
        settings["dictionary"] = file_digest(config.dictionary)
    version = sys.modules[SYSTEM].VERSION
    train = Stage(name="train", run=run("train"), version=version, config=settings, seed=seed)
    corpus = text_graph.corpus("text", config.data)
    inputs = {"model": train, "corpus": corpus}
    return StageGraph(Stage(name="scores", run=run("score"), config={"splits": list(splits)}, inputs=inputs))


def train(context):
    (context.directory / "model.json").write_text(json.dumps([context.config, context.seed]))


def score(context):
    config, seed = json.loads((context.inputs["model"] / "model.json").read_text())
    if seed == 13:
        raise RuntimeError("no luck")
    for split in context.config["splits"]:
        references = read_corpus(context.inputs["corpus"] / split).target
        rng = np.random.default_rng([seed, len(config["arm"])])
        right = RIGHT[config["arm"]] + 0.01 * config["steps"]
        guesses = [" ".join(w if rng.random() < right else "?" for w in line.split()) for line in references]
        evaluation = evaluate_text(guesses, references, metrics=("bleu", "chrf"))
        write_evaluation(context.directory, split, guesses, references, evaluation)


PARTS = (Config, stage_graph, train, score)
"""What makes it a system."""

STUDY = """\
# Which arm guesses best?
name: guesses
description: Which arm guesses best?
system: registered_system
data:
  corpus: files
  train: {sources: train.en, target: train.de}
  dev: {sources: dev.en, target: dev.de}
  test: {sources: test.en, target: test.de}
base: {steps: 10, dictionary: words}
factors:
  arm:
    levels: {plain: {arm: plain}, avg: {arm: avg}, att: {arm: att}}
    baseline: plain
components:
  schooling: {without: {lr: 0.1}}
objective: {metric: dev/bleu, direction: maximize}
seeds: [1, 2, 3]
published:
  - {source: Table 1, metric: test/bleu, values: {avg: 31.0, plain: 30.0, att: 32.0}}
claims:
  - {better: avg, worse: plain}
  - {better: att, worse: avg, margin: 1.0}
scales:
  tiny: {base: {steps: 2}}
resources: {cpus_per_worker: 1}
storage: {path: store}
"""


class Workplace:
    """A directory with a study and its text, as its user edits them."""

    def __init__(self, root):
        self.root = root
        words = [f"w{n}" for n in range(50)]
        rng = np.random.default_rng(3)
        for split, num in (("train", 30), ("dev", 10), ("test", 20)):
            lines = [" ".join(rng.choice(words, 8)) for _ in range(num)]
            self.write(f"{split}.en", lines)
            self.write(f"{split}.de", [line.upper() for line in lines])
        self.write("words", words)
        self.document = parse(STUDY).values
        self.text = STUDY

    def put(self, path, value):
        """Set a value, or drop it with None."""
        *parents, last = path.split("/")
        node = self.document
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        last = int(last) if isinstance(node, list) else last
        if value is None:
            del node[last]
        else:
            node[last] = value

    def lines(self, name):
        return (self.root / name).read_text().splitlines()

    def write(self, name, lines):
        (self.root / name).write_text("".join(f"{line}\n" for line in lines))

    def study(self, *overrides, text=None):
        file = self.root / "guesses.yaml"
        if text is None:
            with file.open("w") as opened:
                opened.write(write_yaml(self.document))
        else:
            file.write_text(text)
        return nlgraft.Study.from_yaml(file, [f"storage.path={self.root / 'store'}", *overrides])

    def run(self, *overrides, skip=()):
        """Run all trials as a driver does: what the study asks is declared once, when the first has ended."""
        study, is_declared = self.study(*overrides), False
        store = ArtifactStore.open(study.storage.path)
        options = {"reporter": NullReporter(), "is_waiting": True}
        for cell in cells(study):
            resolved = resolve_cell(study, cell)
            for seed in study.seeds:
                if (cell.label, seed) in skip or cell.label in skip:
                    continue
                with suppress(TrialFailed):
                    run_trial(resolved.graph(seed), store, config=resolved.document, **options)
                if not is_declared:
                    read_result(study, store).declare()
                    is_declared = True
        return nlgraft.load(study)

    def register(self, *overrides):
        return nlgraft.register(self.study(*overrides))

    def registration(self, *overrides, text=None):
        return nlgraft.load(self.study(*overrides, text=text)).registration

    def deviations(self, *overrides, text=None):
        return [deviation.text for deviation in self.registration(*overrides, text=text).deviations]


def put(path, value):
    """An edit of the file, see `Workplace.put`."""
    return lambda place: place.put(path, value)
