"""The stages of a trial: corpus, tokenizers, encoded text, training, translation, scores."""

from __future__ import annotations

from examples.minimal_system.config import Config
from nlgraft.pipeline.stage import StageGraph
from nlgraft.stages import seq2seq_graph, text_graph
from nlgraft.stages.seq2seq_graph import DecodingSettings, TrainSettings
from nlgraft.training.train_config import Side, View


def stage_graph(config: Config, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
    """Build the stage graph of a trial.

    All cells share corpus and tokenizers; only the training and the stages after it depend on the seed.
    """
    corpus = text_graph.corpus("bitext", config.data)
    tokenizers = text_graph.tokenizers("bitext", config.tokenizer, {"bitext": corpus}, num_sources=2)
    text = text_graph.encode(
        "bitext",
        corpus,
        {role: tokenizers[role] for role in (*config.sources, text_graph.TARGET)},
        max_tokens=config.max_tokens,
    )
    view = View(sources=tuple(Side(stream=role) for role in config.sources))
    settings = TrainSettings(
        train=config.train,
        model=config.model.transformer(num_sources=len(config.sources)),
        view=view,
        sampling_alpha=config.tokenizer.sampling_alpha,
    )
    trained = seq2seq_graph.train("trained", text, settings, seed=seed)
    decoding = DecodingSettings(decode=config.decode, view=view, is_calibrated=config.score.is_calibrated)
    return StageGraph(seq2seq_graph.scores(trained, text, splits, decoding, config.score))
