"""The stages of a trial whose model is a masked language model.

corpora -> vocabularies -> encoded text -> upstream training -> exchange -> continued training -> scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from nlgraft.pipeline.stage import StageGraph
from nlgraft.stages import masked_lm_graph as masked_pieces
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages.kinds.masked_lm_kinds import TrainMaskedSettings
from trainables.embedding_transfer.arms import STREAMS
from trainables.embedding_transfer.config import Config
from trainables.embedding_transfer.exchange_graph import VocabularyExchange
from trainables.embedding_transfer.metrics import REPORT_STEPS


def masked_lm_graph(config: Config, *, seed: int, splits: Sequence[str]) -> StageGraph:
    """Build the stage graph of a trial from a config with a ``masked_lm`` part."""
    model, transfer, limit = config.masked_lm, config.transfer, config.data.max_tokens
    assert model is not None
    corpora = {name: pieces.corpus(name, getattr(config.data, name)) for name in ("upstream", "downstream")}
    old = masked_pieces.upstream_tokenizer(model, corpora["upstream"])
    dropout = model.upstream_dropout
    old_text = masked_pieces.masked_text(
        "upstream", corpora["upstream"], old, max_tokens=limit, dropout=dropout
    )
    upstream = masked_pieces.pretrained_masked_lm(
        model, config.upstream.train, old_text, max_tokens=limit, seed=config.upstream.seed_of(seed)
    )
    is_exchanged = transfer.method != "pretrain_finetune"
    new = old
    if is_exchanged:
        tokenizer = model.downstream_tokenizer
        new = masked_pieces.word_tokenizer("downstream", tokenizer, corpora["downstream"])
        dropout = tokenizer.dropout
    new_text = masked_pieces.masked_text(
        "downstream", corpora["downstream"], new, max_tokens=limit, dropout=dropout
    )
    exchange = VocabularyExchange(
        config=config,
        seed=seed,
        model=upstream,
        old={"encoder": old},
        new={"encoder": new},
        old_text=old_text.encoded,
        new_text=new_text.encoded,
        streams={"encoder": STREAMS["encoder"]},
        masking=model.masking,
    )
    settings = TrainMaskedSettings(
        train=config.downstream.train,
        masking=model.masking,
        scoring=model.scoring,
        new_rows_first_steps=transfer.new_rows_first_steps if is_exchanged else 0,
        report_steps=REPORT_STEPS,
    )
    start = exchange.transfer if is_exchanged else upstream
    continued = masked_pieces.continued_masked_lm("continued", start, new_text, settings, seed=seed)
    return StageGraph(masked_pieces.masked_scores(continued, new_text, model, splits))
