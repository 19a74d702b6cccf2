"""Scores of references in any script, where a study leaves the tokenizers of BLEU and ROUGE open."""

import pytest

from nlgraft.evaluation.artifact import read_lines, read_metrics, write_lines
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages import seq2seq_graph
from nlgraft.stages.config_parts import ScoreConfig
from nlgraft.stages.run.translation_stages import HYPOTHESES_FILE
from nlgraft.stages.seq2seq_graph import SCORE, ScoreInputs, extract_scores
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import FilesConfig
from tests.unit.stages.runs import made, run

TEXTS = {
    "korean": ("날씨가 좋다. 비가 온다. 나는 학교에 갑니다.", "나는 학교에 갑니다"),
    "chinese": ("天气很好。下雨了。我们今天去北京。", "我们今天去北京"),
    "russian": ("Погода хорошая. Идёт дождь. Мы сегодня едем домой.", "Мы сегодня едем домой"),
    "english": ("It is sunny. Now it rains. We are going home today.", "We are going home today"),
}
WORDS = {"korean": "unicode", "chinese": "characters", "russian": "unicode", "english": "a-z0-9"}


@pytest.fixture
def store(tmp_path):
    return ArtifactStore.open(tmp_path / "store")


def corpus(directory, script, test_script=None):
    splits = {}
    for split in ("train", "dev", "test"):
        source, target = TEXTS[test_script if test_script and split == "test" else script]
        paths = {"sources": directory / f"{split}.source", "target": directory / f"{split}.target"}
        paths["sources"].write_text(f"{source}\n" * 3)
        paths["target"].write_text(f"{target}\n" * 3)
        splits[split] = {name: str(path) for name, path in paths.items()}
    return seq2seq_graph.corpus("task", FilesConfig.model_validate({"corpus": "files", **splits}))


def reproduce(context):
    """Write the references as hypotheses."""
    references = read_corpus(context.inputs["corpus"] / context.config["split"]).target
    write_lines(context.directory / HYPOTHESES_FILE, references)


def perfect_scores(store, text, splits=("dev",), **score):
    perfect = {
        split: Stage(
            name=f"perfect_{split}",
            run=f"{__name__}:reproduce",
            config={"split": split},
            inputs={"corpus": text},
        )
        for split in splits
    }
    settings = seq2seq_graph.score_settings(ScoreConfig.model_validate(score))
    stage = SCORE.stage("scores", settings, ScoreInputs(corpus=text, translations=perfect))
    run(store, StageGraph(stage))
    return read_metrics(store.fetch(stage))


@pytest.mark.parametrize("script", TEXTS)
def test_the_references_themselves_have_a_perfect_rouge_in_any_script(store, tmp_path, script):
    scores = perfect_scores(store, corpus(tmp_path, script), metrics=("rouge1", "rouge2", "rouge_lsum"))
    for metric in scores.values():
        assert metric["value"] == 100
        assert f"|tok:{WORDS[script]}|" in metric["signature"]


@pytest.mark.parametrize("script", TEXTS)
def test_the_oracle_finds_the_sentence_of_the_reference(store, tmp_path, script):
    text = corpus(tmp_path, script)
    stages = extract_scores(text, ("dev",), num_sentences=1, rouge_tokenizer=None)
    chosen = made(store, stages["oracle"].inputs["translations/dev"])
    kept = read_lines(chosen / HYPOTHESES_FILE)
    assert all(TEXTS[script][1] in line for line in kept), kept
    run(store, StageGraph(stages["oracle"]))
    assert read_metrics(store.fetch(stages["oracle"]))["oracle/dev_rouge2"]["value"] == 100
    lead = made(store, stages["lead"].inputs["translations/dev"])
    assert not any(TEXTS[script][1] in line for line in read_lines(lead / HYPOTHESES_FILE))


@pytest.mark.parametrize(("script", "tokenizer"), [("chinese", "zh"), ("russian", "13a"), ("english", "13a")])
def test_bleu_splits_words_by_the_script(store, tmp_path, script, tokenizer):
    scores = perfect_scores(store, corpus(tmp_path, script), metrics=("bleu",))
    assert f"|tok:{tokenizer}|" in scores["dev/bleu"]["signature"]
    assert scores["dev/bleu"]["value"] == pytest.approx(100)


def test_all_splits_are_scored_alike_and_a_choice_counts(store, tmp_path):
    text = corpus(tmp_path, "chinese", test_script="english")
    scores = perfect_scores(store, text, splits=("dev", "test"), metrics=("bleu",))
    assert {metric["signature"].split("tok:")[1].split("|")[0] for metric in scores.values()} == {"zh"}
    chosen = perfect_scores(store, text, metrics=("bleu",), bleu_tokenizer="char")
    assert "|tok:char|" in chosen["dev/bleu"]["signature"]
