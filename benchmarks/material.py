"""Text for all contestants, produced by a study's own stages, and the size of the model."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import NullReporter, Reporter, Stage, StageContext, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import execute_stage
from nlgraft.stages import text_graph
from nlgraft.stages.run.text_stages import read_encoded, vocab_sizes
from nlgraft.stages.stage_kind import ENCODED, EncodeInputs
from nlgraft.stages.text_graph import EncodedText
from nlgraft.text.corpus_config import ConlangConfig, CorpusConfig, FilesConfig
from nlgraft.text.tokenizer_config import TokenizerConfig
from nlgraft.training.views import Encoded

VOCAB_SIZE = 8000
SIZE: dict[str, Any] = {
    "d_model": 256,
    "num_encoder_layers": 3,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "ffn_dim": 1024,
}
CONTEXT = "context prlm"
"""Stream with the sources as a pretrained encoder reads them."""
_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Material:
    """A parallel corpus under one joint vocabulary.

    Attributes:
        name: Where it is from.
        text: Its stages: corpus, tokenizer, encoded splits.
        store: Holds their artifacts, and those of whatever else is run.
    """

    name: str
    text: EncodedText
    store: ArtifactStore
    _scratch: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list)

    def directory(self, stage: Stage) -> Path:
        """Run a stage and what it rests on where their artifacts are missing; give its artifact."""
        for each in StageGraph(stage).stages:
            if not self.store.has(each):
                execute_stage(each, self.store, reporter=NullReporter())
        return self.store.fetch(stage)

    def context(
        self,
        stage: Stage,
        *,
        reporter: Reporter | None = None,
        inputs: Mapping[str, Path] | None = None,
        device: str = "cpu",
    ) -> StageContext:
        """Give what the function of a stage is called with, in a directory of its own.

        Args:
            stage: The stage.
            reporter: Where its progress goes.
            inputs: Inputs that no stage has made.
            device: Where it computes.
        """
        self._scratch.append(tempfile.TemporaryDirectory())
        made = {name: self.directory(each) for name, each in stage.inputs.items()}
        return StageContext(
            stage=stage,
            directory=Path(self._scratch[-1].name),
            inputs={**made, **(inputs or {})},
            checkpoints=self.store.checkpoints(stage, is_writable=False),
            reporter=reporter or NullReporter(),
            device=device,
        )

    @cached_property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        return vocab_sizes(self.directory(self.text.encoded))["target"]

    def split(self, name: str) -> Encoded:
        """Read an encoded split."""
        return read_encoded(self.directory(self.text.encoded), name)


def _corpus(is_constructed: bool) -> tuple[str, CorpusConfig]:
    root = Path(os.environ.get("NLGRAFT_DATA", _SHARED)) / "multi30k"
    if is_constructed or not root.is_dir():
        return "conlang", ConlangConfig(corpus="conlang", train=29000, dev=1000, test=1000)
    files = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    splits = {
        split: {"sources": str(root / f"{name}.en.gz"), "target": str(root / f"{name}.de.gz")}
        for split, name in files.items()
    }
    return "Multi30k en-de", FilesConfig.model_validate({"corpus": "files", **splits})


@cache
def load_material(*, is_constructed: bool = False) -> Material:
    """Take Multi30k English-German below ``NLGRAFT_DATA``, or constructed text of the same size.

    Constructed text has a vocabulary of about 1,900; it is also taken where Multi30k is not at hand.
    """
    name, config = _corpus(is_constructed)
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    corpus = text_graph.corpus("bench", config)
    learned = text_graph.tokenizers("bench", TokenizerConfig(vocab_size=VOCAB_SIZE), {"bench": corpus})
    tokenizers = {**learned, CONTEXT: learned["source 0"]}
    text = text_graph.encode("bench", corpus, tokenizers, streams={CONTEXT: "source 0"})
    # Studies encode test lines where they decode; here the search alone is timed.
    settings = text.settings.model_copy(update={"splits": ("train", "dev", "test")})
    inputs = EncodeInputs(corpus=corpus, tokenizers=tokenizers)
    text = replace(text, settings=settings, encoded=ENCODED.stage("bench_encoded", settings, inputs))
    return Material(name, text, ArtifactStore.open(directory.name))


def our_config(**changes: Any) -> TransformerConfig:
    """Our Transformer, post-norm, all tables tied, as Marian is."""
    return TransformerConfig.model_validate(
        {**SIZE, "dropout": 0.1, "norm": "post", "tying": "all", "activation": "relu", **changes}
    )


def our_model(vocab_size: int, **changes: Any) -> Seq2Seq:
    """A fresh model of that configuration."""
    torch.manual_seed(0)
    return Seq2Seq(our_config(**changes), vocab_size, vocab_size)
