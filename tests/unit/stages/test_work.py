"""The size of trainings, from which their time is estimated, by hand."""

from pathlib import Path

from nlgraft.nn.context_config import BiLMConfig, UniLMConfig
from nlgraft.pipeline.stage import Work
from nlgraft.study.public import Study

ROOT = Path(__file__).parents[3]


def test_trainings_of_the_demo_know_their_size(tmp_path):
    demo = ROOT / "search_spaces" / "embedding_transfer" / "demo.yaml"
    overrides = [f"storage.path={tmp_path}", "upstream.train.batch_characters=null"]
    overrides.append("upstream.train.batch_tokens=2000")
    plan = Study.from_yaml(demo, overrides).plan()
    graph = next(trial.graph for trial in plan.trials if trial.cell.label == "arm=patt_eg")
    width, inner, layers, vocabulary = 64, 256, 2, 800
    encoder_layer = 4 * width**2 + 2 * width * inner
    decoder_layer = 8 * width**2 + 2 * width * inner
    parameters = layers * (encoder_layer + decoder_layer) + width * vocabulary
    assert graph.find("upstream").work == Work(600, 2000, parameters)
    finetuned = graph.find("finetuned").work
    assert (finetuned.num_steps, finetuned.num_parameters) == (150, None)
    assert graph.find("generator").num_steps == 60
    assert graph.find("translation_test").work is None
    assert plan.cost_s is not None
    assert not plan.is_cost_measured


def test_language_models_of_two_towers_count_both_and_what_combines_them():
    sizes = {"d_model": 8, "num_heads": 2, "ffn_dim": 16, "num_layers": 3}
    layer = 4 * 8**2 + 2 * 8 * 16
    assert UniLMConfig(**sizes).num_layer_parameters == 3 * layer
    assert BiLMConfig(**sizes).num_layer_parameters == 7 * layer
    assert BiLMConfig(**sizes, combiner="linear").num_layer_parameters == 6 * layer + 2 * 8**2
