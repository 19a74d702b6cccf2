"""The winner of a study: chosen, exported, used on the command line and served by MLflow."""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pandas as pd
import pytest

import nlgraft
from nlgraft.basics.errors import DataError, NlgraftError, StudyError
from nlgraft.evaluation.artifact import read_lines
from nlgraft.export.exported import write_directory
from nlgraft.export.exporting import choose
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.public import Study
from nlgraft.text.corpora import read_corpus
from tests.commands import nlgraft as invoke
from tests.servers import first_answer, free_port
from tests.tensors import assert_near


def export_first_seed(study, out, cell):
    return nlgraft.export_model(study, out, cell=cell, seed=1)


def said_by_trial(study, cell, seed):
    """Test sources of a cell by column, and what its trial made of them, from the store itself."""
    graph = choose(nlgraft.load(study), cell, seed).graph
    store = ArtifactStore.open(study.storage.path)
    translation = graph.result.inputs["translations/test"]
    streams = read_corpus(store.fetch(translation.inputs["corpus"]) / "test").sources
    return streams[: 2 if cell == "both" else 1], read_lines(store.fetch(translation) / "hypotheses.txt")


def by_hand(study, cell):
    """The objective by seed, from the trials' records."""
    frame = nlgraft.load(study).frame()
    rows = frame[frame["factor.read"] == cell]
    return dict(zip(rows["seed"], rows["dev/loss"], strict=True))


def test_the_best_cell_and_its_median_seed_are_chosen(study):
    """The loss is minimised: the cell of the lowest mean, and of its three seeds neither best nor worst."""
    losses = {cell: by_hand(study, cell) for cell in ("first", "both")}
    means = {cell: sum(values.values()) / 3 for cell, values in losses.items()}
    best = min(means, key=lambda cell: means[cell])
    middle = sorted(losses[best], key=lambda seed: losses[best][seed])[1]
    choice = choose(nlgraft.load(study))
    assert (choice.cell.cell.levels["read"], choice.trial.seed) == (best, middle)
    assert "best mean dev/loss" in choice.reasons[0]
    assert f"seed {middle}: the median by dev/loss" in choice.reasons[1]
    worst = max(losses["first"], key=lambda seed: losses["first"][seed])
    assert choose(nlgraft.load(study), "first", worst).trial.seed == worst


def test_what_cannot_be_chosen_is_refused_with_what_can(study, tmp_path):
    result = nlgraft.load(study)
    with pytest.raises(StudyError, match="both"):
        choose(result, "bohh")
    with pytest.raises(DataError, match=r"seed 7 has not finished\. .*1, 2, 3"):
        choose(result, "both", 7)
    empty = Study.from_dict({**study.to_dict(), "storage": {"path": str(tmp_path / "empty")}})
    with pytest.raises(DataError, match="no trial has finished; run the study first"):
        choose(nlgraft.load(empty))
    unmeasured = {"metric": "dev/ece", "direction": "minimize"}
    with pytest.raises(DataError, match="no finished trial has a value of dev/ece"):
        choose(nlgraft.load(Study.from_dict({**study.to_dict(), "objective": unmeasured})))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(DataError, match="not empty"):
        nlgraft.export_model(study, tmp_path / "full")
    places = ["--out", tmp_path / "none", "--storage", tmp_path / "empty"]
    assert "kept.tar" in invoke("export", "command/shell", *places, code=2).stderr


@pytest.mark.parametrize("cell", ["first", "both"])
def test_the_command_line_translates_as_the_trial_did(study, cell, tmp_path):
    """Export and translate as a user does; two sources are columns with a tab between them."""
    out = tmp_path / "winner"
    storage = ["--storage", study.storage.path]
    done = invoke("export", "small", "--cell", cell, "--seed", "2", "--out", out, *storage)
    assert done.stdout == f"{out}\n"
    assert f"next: nlgraft translate {out} < text" in done.stderr
    columns, expected = said_by_trial(study, cell, 2)
    text = "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))
    translated = invoke("translate", out, text=text.encode())
    assert translated.stdout == "".join(f"{line}\n" for line in expected)
    assert nlgraft.load_model(out).translate(*columns) == expected
    assert invoke("translate", out).stdout == ""


def test_ctranslate2_reads_the_tokens_of_the_tokenizer(study, tmp_path):
    """Greedy search by CTranslate2 itself, with nothing but the exported files."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    sentencepiece = pytest.importorskip("sentencepiece")
    export_first_seed(study, tmp_path / "m", "first")
    [lines], expected = said_by_trial(study, "first", 1)
    path = next((tmp_path / "m" / "nlgraft" / "tokenizers" / "0").glob("*.model"))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    sources = [[*pieces.encode(line, out_type=str), "</s>"] for line in lines]
    translator = ctranslate2.Translator(str(tmp_path / "m" / "ctranslate2"))
    limits = [len(source) + 5 for source in sources]  # of the study: ratio 1, offset 5
    translated = [
        translator.translate_batch([source], beam_size=1, max_decoding_length=limit)[0].hypotheses[0]
        for source, limit in zip(sources, limits, strict=True)
    ]
    assert [pieces.decode(tokens) for tokens in translated] == expected


def test_wrong_input_of_a_model_is_named(study, tmp_path):
    export_first_seed(study, tmp_path / "m", "both")
    refused = invoke("translate", tmp_path / "m", text=b"a\tb\nonly one\n", code=2)
    assert "line 2: 1 columns, the model reads 2" in refused.stderr
    invoke("translate", tmp_path / "m", text=b"\xff\tb\n", code=2)
    assert "use `nlgraft translate`" in invoke("classify", tmp_path / "m", text=b"a\n", code=2).stderr
    invoke("translate", tmp_path, text=b"a\n", code=2)


def test_two_columns_for_one_source_are_translated_and_told(study, tmp_path):
    export_first_seed(study, tmp_path / "m", "first")
    done = invoke("translate", tmp_path / "m", text=b"a\na\tb\n")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 2)
    assert "line 2: has a tab, but the model reads one source, source 0" in done.stderr


def test_the_card_says_what_the_model_is(study, tmp_path):
    """Every score is that of the record; the interval is about the mean of the seeds."""
    exported = nlgraft.export_model(study, tmp_path / "m")
    card = (tmp_path / "m" / "README.md").read_text("utf-8")
    metrics = exported.choice.trial.metrics
    values = [trial.metrics["test/bleu"] for trial in exported.choice.cell.trials]
    [row] = [line for line in card.splitlines() if line.startswith("| test/bleu |")]
    columns = [part.strip() for part in row.split(" | ")]
    assert columns[1:3] == [f"{metrics['test/bleu']:.4g}", f"{sum(values) / 3:.4g}"]
    assert "over seeds and segments" in columns[3]
    for fact in (
        *exported.choice.reasons,
        "constructed language",
        "corpus: conlang",
        exported.choice.trial.fingerprint,
    ):
        assert fact in card
    assert exported.to_json()["seed"] == exported.choice.trial.seed


def test_the_licence_of_a_base_is_that_of_its_card(tmp_path):
    from nlgraft.export.exporting import _bases

    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# BERT\n")
    config = {"prlms": [{"checkpoint": str(tmp_path / "bert")}], "upstream": {"checkpoint": str(tmp_path)}}
    assert dict(_bases(config)) == {"bert": "apache-2.0", tmp_path.name: "unknown"}


def test_a_causal_language_model_is_taken_with_its_tokenizer(tmp_path):
    """As a system hands it over: a checkpoint of transformers, and the tokenizer that its scores read."""
    import tokenizers
    import torch
    import transformers

    learned = tokenizers.ByteLevelBPETokenizer()
    learned.train_from_iterator(["ein Haus am See, ein Baum am Haus"] * 3, vocab_size=280)
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=learned.get_vocab_size(), n_embd=16, n_layer=1, n_head=2)
    trained = transformers.GPT2LMHeadModel(config).eval()
    tokenizer = Stage(name="tokenizer", run="toy:learn")
    model = Stage(name="continued", run="toy:train", inputs={"tokenizer": tokenizer})
    scores = Stage(name="scores", run="toy:score", inputs={"model": model, "tokenizer": tokenizer})
    store = ArtifactStore.open(tmp_path / "store")
    for stage in (tokenizer, model):
        scratch = store.new_scratch(stage)
        if stage is model:
            trained.save_pretrained(scratch)
            (scratch / "metrics.json").write_text("{}")
        else:
            learned.save(str(scratch / "tokenizer.json"))
        store.publish(stage, scratch)
    (tmp_path / "m").mkdir()
    _, forms = write_directory(StageGraph(scores), store, tmp_path / "m")
    assert forms["transformers"] == "GPT2LMHeadModel loads this directory"
    assert not (tmp_path / "m" / "metrics.json").exists()
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")("ein Haus", return_tensors="pt")[
        "input_ids"
    ]
    assert ids.tolist() == [learned.encode("ein Haus").ids]
    with torch.no_grad():
        logits = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()(ids).logits
        assert_near(logits, trained(ids).logits, 0)


def test_mlflow_serves_the_winner(study, tmp_path, monkeypatch, empty_database):
    """Logged to the run of its trial, once; the loaded model answers as the trial did."""
    import mlflow

    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("small", artifact_location=(tmp_path / "files").as_uri())
    exported = export_first_seed(study, tmp_path / "m", "both")
    from nlgraft import api

    elsewhere = tmp_path / "elsewhere.db"
    with pytest.raises(DataError, match=r"no database .*elsewhere\.db"):
        api.log_export(study, exported, f"sqlite:///{elsewhere}")
    assert not elsewhere.exists()
    with pytest.raises(NlgraftError, match=r"no run of trial .* run the study with this tracking URI first"):
        api.log_export(study, exported, uri)
    trial = exported.choice.trial.fingerprint
    run = client.create_run(experiment, tags={"nlgraft.fingerprint": trial})
    logged = api.log_export(study, exported, uri)
    assert api.log_export(study, exported, uri) == logged
    [model] = client.search_logged_models([experiment])
    assert model.source_run_id == run.info.run_id
    columns, expected = said_by_trial(study, "both", 1)
    frame = pd.DataFrame(dict(zip(("source 0", "source 1"), columns, strict=True)))
    assert mlflow.pyfunc.load_model(logged).predict(frame) == expected


@pytest.mark.slow
def test_a_server_answers_with_the_winner(study, tmp_path):
    """``mlflow models serve`` of an exported model; one request by HTTP."""
    from nlgraft.tracking.served import save_predictor

    export_first_seed(study, tmp_path / "m", "first")
    save_predictor(tmp_path / "served", tmp_path / "m", [])
    [lines], expected = said_by_trial(study, "first", 1)
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local", "-w", "1"]
    command += ["-m", str(tmp_path / "served"), "-h", "127.0.0.1", "-p", str(port)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    server = subprocess.Popen(command, env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"})
    try:
        body = json.dumps({"inputs": list(lines)}).encode()
        url, kind = f"http://127.0.0.1:{port}/invocations", {"Content-Type": "application/json"}
        answer = json.loads(first_answer(urllib.request.Request(url, body, kind), server))
        assert answer["predictions"] == list(expected)
    finally:
        server.terminate()
        server.wait(30)
