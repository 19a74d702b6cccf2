"""Our own language models: text as batches, objective, perplexity, and models on disk.

Shape letters: B sentences, T tokens, P predicted tokens, V vocabulary, D width, N sentences of a text.

Source: Edunov et al. (2019), section 3.2.
"""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import ContractError, StoreError
from nlgraft.evaluation.inputs import pack
from nlgraft.evaluation.scores import Evaluation
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import LanguageModelConfig
from nlgraft.nn.language_models import BiLM, UniLM, build_language_model
from nlgraft.nn.modes import seeded
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.text.tokenizers import EOS
from nlgraft.training.losses import Loss, Predictions, projected_cross_entropy, segment_losses
from nlgraft.training.seeds import derive_seed
from nlgraft.training.views import IntArray, LineData, surrounded
from nlgraft.training.weights import load_model, save_model

LanguageModel = UniLM | BiLM

DESCRIPTION_FILE = "language_model.json"
_CONFIG: TypeAdapter[LanguageModelConfig] = TypeAdapter(LanguageModelConfig)
_DROPOUTS = {"dropout", "attention_dropout", "activation_dropout"}


class TextData(LineData[Tokens]):
    """Monolingual text as batches; EOS stands at both ends of every sentence.

    Args:
        sentences: Bare ids of each sentence.
        batch_tokens: Largest number of padded positions of a batch; or given batches.
        seed: Seed of the batches.
    """

    def __init__(
        self,
        sentences: Ragged,
        *,
        batch_tokens: int | LengthBatches,
        seed: int = 0,
    ) -> None:
        super().__init__(surrounded(sentences, EOS, EOS), batch_tokens, seed)

    def batch(self, rows: IntArray, epoch: int = 0) -> Tokens:
        """Pack some sentences, [B, T], on the CPU; all epochs are alike."""
        return pack(self._lines, rows)


def language_model_objective(model: LanguageModel, tokens: Tokens) -> Loss:
    """Sum the cross-entropy of every token given those before it (one tower) or all others (two towers)."""
    states_PD, tokens_P, _ = model.predictions(tokens)
    table_VD = model.embedding.table.weight
    loss = projected_cross_entropy(states_PD, table_VD, None, tokens_P, 0.0, "uniform_all")
    return Loss(loss, len(tokens_P))


def _predict(model: LanguageModel, tokens: Tokens) -> Predictions:
    states_PD, tokens_P, rows_P = model.predictions(tokens)
    return Predictions(model.logits(states_PD), tokens_P, rows_P)


def evaluate_language_model(
    model: LanguageModel, data: TextData, device: torch.device | str = "cpu"
) -> Evaluation:
    """Measure ``loss`` (nats per token) and ``perplexity`` on a text, with statistics [N, 2].

    A two-tower model conditions on all other tokens, so its perplexity is comparable only with that of other
    two-tower models; the signature names the condition.
    """
    rows = segment_losses(model, data.in_order(), len(data), device, _predict)
    signatures = {name: f"{name}|{condition(model)}|tok:model" for name in ("loss", "perplexity")}
    return Evaluation.of(dict.fromkeys(signatures, rows), signatures)


def condition(model: LanguageModel) -> str:
    """Name the tokens that a prediction is conditioned on, for signatures."""
    return "given:all-others" if isinstance(model, BiLM) else "given:those-before"


def fresh_language_model(config: LanguageModelConfig, seed: int) -> LanguageModel:
    """Initialise a language model from a stage's seed alone."""
    with seeded(derive_seed(seed, "initialise")):
        return build_language_model(config)


def write_language_model(model: LanguageModel, directory: Path) -> None:
    """Write a language model and its configuration into an artifact."""
    save_model(model, directory)
    text = model.config.model_dump_json(indent=1)
    (directory / DESCRIPTION_FILE).write_text(text + "\n", "utf-8")


def read_language_model(directory: Path, config: LanguageModelConfig | None = None) -> LanguageModel:
    """Read a model written by ``write_language_model``, on the CPU and in evaluation mode.

    Args:
        directory: The artifact.
        config: Expected configuration. Dropouts may differ from those of pretraining; ``vocab_size`` may be
            left out.

    Raises:
        StoreError: The artifact holds no language model.
        ContractError: It is another model than expected.
    """
    path = directory / DESCRIPTION_FILE
    try:
        written = _CONFIG.validate_json(path.read_text("utf-8"))
    except (OSError, ValidationError) as error:
        raise StoreError(f"{path}: no language model ({error}): run its pretraining stage again") from error
    if config is None:
        config = written
    elif config.vocab_size is None:
        config = config.model_copy(update={"vocab_size": written.vocab_size})
    expected, actual = (each.model_dump(mode="json") for each in (config, written))
    differing = [
        f"{name} is {actual.get(name)}, not {expected.get(name)}"
        for name in sorted({*expected, *actual} - _DROPOUTS)
        if expected.get(name) != actual.get(name)
    ]
    if differing:
        raise ContractError(f"{directory}: another language model than expected: {'; '.join(differing)}")
    with torch.random.fork_rng(devices=[]):
        model = build_language_model(config)
    load_model(model, directory)
    return model.eval()
