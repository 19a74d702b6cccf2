"""Every setting of every system has an effect on the outcome of its toys, not merely on fingerprints.

Another value of a setting must change weights, ids, states, text, measures or curves of some stage. Each way
in which `READ_WHEN` says that a setting is read is tried in an arm of its own. `make test` tries all settings
of the model and of what methods put around it, and one in `STRIDE` of the others; `make test-slow` tries all.
"""

import pytest

from nlgraft.basics.strict_config import are_met
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.reading.system_import import load_system
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig
from nlgraft.text.tokenizers import SentencePiece, train_sentencepiece
from tests.contract.effects import (
    CHOSEN,
    Laboratory,
    changed,
    config_of,
    effect,
    leaves,
    of_arm,
    others_of,
)
from tests.contract.toy_arms import SYSTEMS, arms_of

STRIDE = 24
ARCHITECTURE = ("model.", "sources.", "fusion.", "source.", "target.")
NUM_TRIED = 6
"""Maximum number of other values tried for a setting."""

_LATE = {"max_steps": 6, "eval_every_steps": 1, "warmup_steps": 0, "peak_lr": 1.0}
"""A training whose loss rises again: so high is its rate."""
EXPERIMENTS = {
    "max_epochs": ({"max_steps": None, "max_epochs": 1}, (2,)),
    "batch_characters": ({"batch_tokens": None, "batch_sentences": None, "batch_characters": 2000}, (400,)),
    "batch_sentences": ({"batch_tokens": None, "batch_characters": None, "batch_sentences": 8}, (4,)),
    "initial_lr": ({"warmup_steps": 3}, (0.005,)),
    "final_lr_ratio": ({"lr_schedule": "linear"}, (0.5,)),
    "eval_every_steps": ({}, (1,)),
    "patience": (_LATE, (1,)),
    "average_last": (_LATE, (1, 2)),
    "max_tokens": ({}, (3,)),
    "max_line_chars": ({}, (3, 5, 8)),
    "read": ({}, ("second", [1, 0])),
    "smoothing_kind": ({"label_smoothing": 0.1}, ("uniform_others",)),
    **dict.fromkeys(
        ("tokenizer.dropout", "upstream_tokenizer.dropout", "downstream_tokenizer.dropout"),
        ({"kind": "bpe"}, (0.5,)),
    ),
    **dict.fromkeys(("fusion.first_stage", "intermediate"), ({}, ({"max_steps": 2},))),
    "fusion.dropnet_probability": (
        {"merge": "dropnet", "dropnet_probability": 1.0},
        (0.1,),
    ),
    "multi_source.part.top_layers": ({"lora": None, "top_layers": 1}, (2,)),
    "distillation.train.optimizer": ({"betas": [0.9, 0.98]}, ("nesterov",)),
    "task.prompt": ({}, ("{source} = ",)),
}
"""End of a setting's path -> settings beside it with which a toy shows it, and the other values to try."""

UNSEEN = {
    "decode.batch_sentences": "speed alone",
    **dict.fromkeys(
        ("activation_checkpointing", "compile"), "memory, time: tests/unit/training/test_sharding.py"
    ),
    "has_lm_cache": "speed alone: tests/invariants",
    "score.learned": "it needs a metric to import: tests/unit/stages/test_learned_scores.py",
    "rouge_tokenizer": "the words of the toys are plain: tests/unit/stages/test_learned_scores.py",
    **dict.fromkeys(
        (
            "corpus",
            "task",
            "unsaid",
            "topicality",
            "keep",
            "further_tests",
            "label",
            "document",
            "target",
            "table",
        ),
        "the parts of a corpus go together, one of them is not changed alone: tests/unit/text",
    ),
    "max_source_words": "the first words of the toy's lines are all alike, which is refused: tests/unit/text",
    "is_lowercase": "the constructed text has small letters alone: tests/unit/text",
    "character_coverage": "the constructed text has few characters: a test of the tokenizer below",
    "has_byte_fallback": "the constructed text has few characters: tests/unit/text/test_tokenizers.py",
    "normalization": "the constructed text is normalised: a test of the tokenizer below",
    **dict.fromkeys(
        (
            "decode.alpha",
            "decode.beam",
            "decode.length_penalty",
            "decode.min_length",
            "decode.stopping",
        ),
        "no toy learns to end a sentence: tests/invariants/test_decoding_switches.py",
    ),
}
"""End of a setting's path -> the consequence that no output of a toy shows, and where it is tested."""


REFUSED = {
    "data.directory": "a toy's script lies in one directory",
    "data.files": "a file has a name that a command writes: tests/unit/command",
    "data.text": "what is pretrained needs its text",
    "checkpoint": "a checkpoint decides other settings: tests of checkpoints in tests/unit",
    "multi_source": "one that reads several sources is finetuned on them",
    "language": "the tasks of the toys have languages of their own",
    "teacher": "one BERT is among the models of the toys",
    "is_shared": "all languages of multi_source have one vocabulary",
    "pretraining.tokenizer.dropout": "pretrained models of prlm_fusion read one segmentation",
    **dict.fromkeys(
        ("revision", "upstream.languages", "upstream.start_id"),
        "a toy has no checkpoint",
    ),
    **dict.fromkeys(
        (
            *("masked_lm.model", "upstream_tokenizer", "causal_lm.model", "causal_lm.tokenizer"),
            *("donor.model", "donor.train"),
        ),
        "a model that is trained from scratch needs it",
    ),
    "lora": "one of two ways to finetune a part, which exclude each other",
    "donor": "omp compares tokens in its space",
    **dict.fromkeys(
        ("distillation.train.batch_tokens", "distillation.train.batch_characters"),
        "a batch is of contexts",
    ),
    "model.vocab_size": "that of the tokenizer",
    "vocabulary.method": "the name of a method of nlgraft vocab: all of them in tests/unit/llm_vocabulary",
    "masked_lm.is_body_trained": "a body that starts from scratch must learn",
    "upstream": "what is pretrained needs its text, and a model from scratch its pretraining",
    "masked_lm": "a masked language model has data and tokenizers of its own",
    "best_metric": "most trainings measure the dev loss alone",
    "kind": "a variant of a mapping that has other fields",
}
"""End of a setting's path -> why arms refuse every other value."""


def _entry(table, path):
    """Look up the longest end of a path; None if no end of it is in the table."""
    ends = [end for end in table if f".{path}".endswith(f".{end}")]
    return table[max(ends, key=len)] if ends else None


def cases(system):
    """Collect, for each setting and each way in which it is read, annotation and value in every such arm."""
    arms_by_setting = {}
    for arm, values in arms_of(system.path).items():
        config = config_of(system, values)
        whole = config.model_dump(mode="json")
        for setting, annotation, plain in leaves(config):
            conditions = of_arm(system, values).conditions(setting)
            for way in range(len(conditions) or 1):
                if are_met(conditions[way : way + 1], whole):
                    arms_by_setting.setdefault((setting, way), {})[arm] = annotation, plain
    return arms_by_setting


def idle_settings(laboratory, path, stride):
    """Yield the settings of a system of which no other value changes what comes out.

    Where one arm refuses all other values, or does not use an entry of a mapping, the next one is asked.
    """
    system = load_system(path)
    for index, ((setting, _), arms) in enumerate(cases(system).items()):
        if _entry(UNSEEN, setting) or (not setting.startswith(ARCHITECTURE) and index % stride):
            continue
        outcome = "refused"
        for arm, (annotation, plain) in arms.items():
            outcome = _effect(laboratory, system, arm, setting, annotation, plain)
            if outcome != "refused" and (outcome != "idle" or not setting.startswith(CHOSEN)):
                break
        if outcome == "idle" or (outcome == "refused" and not _entry(REFUSED, setting)):
            yield f"{setting} in {next(iter(arms))}: {outcome}"


def _effect(laboratory, system, arm, setting, annotation, plain):
    beside, others = _entry(EXPERIMENTS, setting) or ({}, tuple(others_of(annotation, plain))[:NUM_TRIED])
    values, parent = arms_of(system.path)[arm], setting.rpartition(".")[0]
    for name, value in beside.items():
        values = changed(values, f"{parent}.{name}".removeprefix("."), value)
    others = [other for other in others if (type(other), other) != (type(plain), plain)]
    return effect(laboratory, system, values, setting, others)


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory):
    """One store for all trials, which share stages as those of a study do."""
    return Laboratory(ArtifactStore.open(tmp_path_factory.mktemp("store")))


@pytest.mark.parametrize(
    "stride", [pytest.param(STRIDE, id="sample"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("path", SYSTEMS)
def test_a_setting_has_an_effect(path, stride, laboratory):
    idle = list(idle_settings(laboratory, path, stride))
    assert not idle, "\n".join(idle)


# --- consequences that no output of a toy shows ------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [({"normalization": "identity"}, "of\ufb01ce"), ({"character_coverage": 0.98}, "a rare \u00e7 here")],
)
def test_a_tokenizer_reads_how_text_is_normalised_and_covered(changes, line, tmp_path):
    lines = ["an office with a rare word here and there and others too"] * 60 + [line]
    read = []
    for name, settings in (("plain", {}), ("changed", changes)):
        config = LearnedTokenizerConfig(vocab_size=60, **settings)
        train_sentencepiece(lines, config, tmp_path / name, seed=1)
        tokenizer = SentencePiece(tmp_path / name)
        read.append(tokenizer.decode(tokenizer.encode([line])))
    assert read[0] != read[1]
