"""A study whose factor has no effect is refused before anything runs, and the message names the factor.

The factors are settings of the model that only graphs decide, and settings that nothing reads in the study.
"""

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.study.public import Study
from tests.contract.toy_arms import arms_of

UNKNOWN, IDLE = "the system's config has no", "have no effect|has no effect"
PROBES = [
    ("embedding_transfer", "patt_eg", "model.fusion.side", ["source", "both"], UNKNOWN),
    ("embedding_transfer", "mean", "transfer.cap", [5, 10], IDLE),
    ("lm_augmentation", "baseline", "model.source_context", ["source", "target"], UNKNOWN),
    ("lm_augmentation", "baseline", "source.dropout", [0.0, 0.1], IDLE),
    ("multi_source", "trice", "model.num_sources", [1, 2], UNKNOWN),
    ("multi_source", "dual BERT", "sources.fine_encoder.norm", ["post", "pre"], IDLE),
    ("prlm_fusion", "sum", "model.contexts", [{}], UNKNOWN),
    ("prlm_fusion", "plain", "fusion.site", ["ffn", "self"], IDLE),
    ("vocabulary_transfer", "vipi", "masked_lm.model.max_positions", [512, 1024], UNKNOWN),
    ("vocabulary_transfer", "from_scratch", "masked_lm.num_scoring_rounds", [1, 2], IDLE),
    ("llm_vocabulary", "none", "vocabulary.method", ["random", "fvt"], IDLE),
    ("llm_vocabulary", "extend", "causal_lm.model.max_positions", [512, 1024], UNKNOWN),
    # the same settings where they are read
    ("embedding_transfer", "patt_eg", "transfer.cap", [5, 10], ""),
    ("multi_source", "trice", "sources.fine_encoder.norm", ["post", "pre"], ""),
    ("prlm_fusion", "sum", "fusion.site", ["ffn", "self"], ""),
    ("llm_vocabulary", "extend", "vocabulary.method", ["random", "fvt"], ""),
]


def _study(system, arm, target, levels):
    values = dict(arms_of(f"trainables.{system}")[arm])
    metric = {"vocabulary_transfer": "accuracy", "llm_vocabulary": "bits_per_byte"}.get(system, "bleu")
    return {
        "schema_version": 1,
        "name": "probe",
        "description": "Is this factor refused?",
        "system": f"trainables.{system}",
        "data": values.pop("data"),
        "base": values,
        "factors": {"probe": {"target": target, "levels": levels, "baseline": levels[0]}},
        "objective": {
            "metric": f"dev/{metric}",
            "direction": "minimize" if metric == "bits_per_byte" else "maximize",
        },
        "seeds": [1],
    }


@pytest.mark.parametrize(
    ("system", "arm", "target", "levels", "message"),
    PROBES,
    ids=[f"{probe[0]}-{probe[2]}-{probe[4][:4] or 'read'}" for probe in PROBES],
)
def test_a_factor_without_effect_is_refused_by_its_name(system, arm, target, levels, message):
    document = _study(system, arm, target, levels)
    if not message:
        assert len(Study.from_dict(document).plan(capacity={"CPU": 1.0, "GPU": 0.0}).cells) == len(levels)
        return
    with pytest.raises(StudyError) as caught:
        Study.from_dict(document)
    [problem] = caught.value.problems
    assert problem.path.startswith("factors.probe.")
    assert target in problem.message
    assert any(text in problem.message for text in message.split("|"))


def test_the_refusal_of_a_wiring_setting_names_the_setting_of_its_system():
    for system, target, setting in (
        ("prlm_fusion", "model.fusion.side", "fusion.side"),
        ("multi_source", "model.fine_encoder.norm", "sources.fine_encoder.norm"),
        ("multi_source", "model.cross_attention", "sources.cross_attention"),
    ):
        arm = "sum" if system == "prlm_fusion" else "trice"
        with pytest.raises(StudyError, match=f"Did you mean '{setting}'"):
            Study.from_dict(_study(system, arm, target, ["a", "b"]))
