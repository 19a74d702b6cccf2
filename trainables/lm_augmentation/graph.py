"""The stages of a trial: language models, tokenizers, training on their states, translation, scores.

Trials with the same settings of a language model share it, and its stored states if it is frozen.
"""

from __future__ import annotations

from functools import cached_property

from nlgraft.nn.context_config import ContextConfig
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import Stage
from nlgraft.stages import context_graph, text_graph
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages.seq2seq_graph import ContextStages, DecodingSettings, TrainSettings
from nlgraft.stages.stage_kind import TrialStages
from nlgraft.stages.text_graph import EncodedText
from nlgraft.text.corpus_config import EOS, TextConfig
from nlgraft.training.train_config import LearnedParameters, ParameterGroup, View
from nlgraft.training.train_config import Side as StreamSide
from trainables.lm_augmentation.config import SIDES, Config, Side

READ: dict[Side, StreamSide] = {
    "source": StreamSide(stream="source 0"),
    # What the decoder reads is shifted: the start token is there, the end is only predicted.
    "target": StreamSide(stream=text_graph.TARGET, prefix=(EOS,), suffix=()),
}
"""Inputs of encoder and decoder in the encoded text."""
STREAMS: dict[Side, str] = {side: read.stream for side, read in READ.items()}
VIEW = View(target_start=EOS)
"""The decoder starts with the end token in every arm, as the language models do (fairseq's convention)."""


class _Trial(TrialStages[Config]):
    """The stages of one trial."""

    @property
    def used(self) -> list[Side]:
        """Sides that read a language model."""
        return [side for side in SIDES if self.config.representation(side).use != "table"]

    @cached_property
    def texts(self) -> dict[Side, Stage]:
        """Text of the language models by side."""
        corpora: dict[Side, TextConfig | None] = {
            "source": self.config.data.source_text,
            "target": self.config.data.target_text,
        }
        return {
            side: text_graph.text(f"{side}_lm", corpus)
            for side, corpus in corpora.items()
            if corpus is not None
        }

    @cached_property
    def corpus(self) -> Stage:
        return text_graph.corpus("downstream", self.config.data.downstream)

    @cached_property
    def tokenizers(self) -> dict[Side, Stage]:
        """Tokenizer of each side of the encoder-decoder."""
        bitext = text_graph.tokenizers("bitext", self.config.tokenizers.bitext, {"downstream": self.corpus})
        return {
            side: self._language_model_tokenizer(side)
            if getattr(self.config.tokenizers, side) == "language_model"
            else bitext[STREAMS[side]]
            for side in SIDES
        }

    def _language_model_tokenizer(self, side: Side) -> Stage:
        config = self.config.tokenizers.language_model
        if not config.is_shared:
            return text_graph.tokenizer(f"{side}_lm", config, {side: self.texts[side]})
        return text_graph.tokenizer("lm_shared", config, {**self.texts})

    @cached_property
    def text(self) -> EncodedText:
        """The task, encoded."""
        tokenizers = {STREAMS[side]: self.tokenizers[side] for side in SIDES}
        return text_graph.encode(
            "downstream", self.corpus, tokenizers, max_tokens=self.config.data.max_tokens
        )

    def language_model(self, side: Side) -> Stage:
        """The language model of a side, pretrained or with random weights."""
        phase = getattr(self.config.language_models, side)
        text = text_graph.encode(
            f"{side}_lm",
            self.texts[side],
            {"source 0": self._language_model_tokenizer(side)},
            max_tokens=self.config.data.max_tokens,
        )
        if self.config.representation(side).weights == "random":
            return pieces.untrained_language_model(f"{side}_lm_untrained", text, phase, seed=self.seed)
        return pieces.language_model(f"{side}_lm", text, phase, seed=self.seed)

    @cached_property
    def language_models(self) -> dict[Side, Stage]:
        return {side: self.language_model(side) for side in self.used}

    @cached_property
    def contexts(self) -> dict[Side, ContextConfig]:
        """The language models as contexts of the encoder-decoder.

        For the source an end token is prepended to every sentence; the target has one already, its start.
        """
        return {
            side: self.config.representation(side).context(
                getattr(self.config.language_models, side).model, EOS if side == "source" else None
            )
            for side in self.used
        }

    @property
    def model(self) -> TransformerConfig:
        places = {f"{side}_context": side for side in self.used}
        return self.config.model.transformer(contexts=self.contexts, **places)

    @property
    def learned(self) -> LearnedParameters:
        """Finetuned language models that stay as they are at first."""
        groups = tuple(
            ParameterGroup(
                pattern=f"^{side}_embedding.context.encoder.", lr_multiplier=1.0, num_frozen_steps=steps
            )
            for side in self.used
            if self.config.representation(side).use == "finetuned"
            and (steps := self.config.representation(side).num_frozen_steps)
        )
        return LearnedParameters(groups=groups)

    @property
    def states(self) -> dict[str, Stage]:
        """Stored states of the source's language model by stream; empty if they are computed live."""
        source = self.config.source
        # A finetuned model's states change with every step.
        if source.use != "elmo" or source.states == "live":
            return {}
        stored = context_graph.frozen_states(
            "source_lm_states",
            self.text,
            self.contexts["source"],
            READ["source"],
            self.language_models["source"],
            precision=source.states,
        )
        return {STREAMS["source"]: stored}

    @property
    def means(self) -> dict[str, Stage]:
        """Mean states of each language model whose mixture is centred."""
        return {
            side: context_graph.state_means(
                f"{side}_lm_means", self.text, context, READ[side], self.language_models[side]
            )
            for side, context in self.contexts.items()
            if context.pooling.is_centred
        }

    @cached_property
    def trained(self) -> Stage:
        return pieces.train(
            "trained",
            self.text,
            TrainSettings(train=self.config.train, model=self.model, view=VIEW, learned=self.learned),
            seed=self.seed,
            contexts=ContextStages({**self.language_models}, self.states, self.means),
        )

    def scores(self, splits: tuple[str, ...]) -> Stage:
        score = self.config.score
        decoding = DecodingSettings(
            decode=self.config.decode,
            view=VIEW,
            has_lm_cache=self.config.has_lm_cache,
            is_calibrated=score.is_calibrated,
        )
        count = self.config.num_extracted_sentences
        return pieces.scores(self.trained, self.text, splits, decoding, score, num_extracted_sentences=count)


stage_graph = _Trial.graph
