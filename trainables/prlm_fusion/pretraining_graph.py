"""The stages that pretrain the language models of a study. Without torch."""

from __future__ import annotations

from nlgraft.pipeline.stage import Stage
from nlgraft.stages import seq2seq_graph
from nlgraft.stages.masked_lm_graph import masked_text, word_tokenizer
from trainables.prlm_fusion.config import Config, DistilbertPrlm, ReleasedPrlm
from trainables.prlm_fusion.kinds import PRETRAIN, PretrainInputs, PretrainSettings


def pretrained(config: Config, name: str, seed: int) -> Stage:
    """Pretrain one of the study's models, after its teacher if it has one; all share text and vocabulary."""
    described, pretraining = config.prlms[name], config.pretraining
    assert not isinstance(described, ReleasedPrlm)
    assert config.data.upstream is not None, "refused by the config"
    corpus = seq2seq_graph.corpus("upstream", config.data.upstream)
    tokenizer = word_tokenizer("upstream", pretraining.tokenizer, corpus)
    text = masked_text("upstream", corpus, tokenizer, max_tokens=pretraining.max_tokens)
    is_distilled = isinstance(described, DistilbertPrlm)
    settings = PretrainSettings(
        # the teacher is an input; its name must not change the fingerprint
        prlm=described.model_copy(update={"teacher": "teacher"}) if is_distilled else described,
        train=pretraining.train,
        masking=None if described.kind == "gpt" else pretraining.masking,
        max_tokens=pretraining.max_tokens,
    )
    teacher = pretrained(config, described.teacher, seed) if is_distilled else None
    inputs = PretrainInputs(corpus=corpus, encoded=text.encoded, tokenizer=tokenizer, teacher=teacher)
    return PRETRAIN.stage(f"{name}_pretrained", settings, inputs, seed=pretraining.seed_of(seed))
