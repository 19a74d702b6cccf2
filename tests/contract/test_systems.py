"""The contract of systems, tested over all folders of trainables and over the worked example."""

import functools
import importlib
import json
import operator
from collections import defaultdict
from itertools import combinations
from typing import Annotated

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from nlgraft.basics.errors import DataError, NlgraftError
from nlgraft.evaluation.artifact import read_lines, read_segments
from nlgraft.export.exported import ExportedModel, write_directory
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import execute_stage, run_trial
from nlgraft.study.data import paths
from nlgraft.study.reading.knobs import knobs as knobs_of
from nlgraft.study.reading.system_import import load_system
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import CorpusConfig
from tests.contract.effects import (
    CHOSEN,
    changed,
    config_of,
    graph_of,
    leaves,
    of_arm,
    others_of,
)
from tests.contract.toy_arms import ROOT, SYSTEMS, arms_of, toys_of
from tests.contract.transformers_loads import (
    assert_classifies_alike,
    assert_loads,
    assert_translates_alike,
)

MODULES = ("__init__.py", "config.py", "metrics.py", "graph.py", "README.md")
"""Files that every system has."""
ARMS = [(path, arm) for path in SYSTEMS for arm in arms_of(path)]
each_system = pytest.mark.parametrize("path", SYSTEMS)
each_arm = pytest.mark.parametrize(
    ("path", "arm"), ARMS, ids=[f"{path.split('.')[-1]}-{arm}" for path, arm in ARMS]
)


@each_system
def test_a_system_has_the_layout_that_all_have(path):
    folder, described = ROOT / path.replace(".", "/"), (ROOT / "trainables/README.md").read_text("utf-8")
    assert [name for name in MODULES if not (folder / name).is_file() or name not in described] == []
    module = importlib.import_module(path)
    names = {*module.__all__} - {"NO_MODEL", "file_problems", "keep_code"}
    assert sorted(names) == ["Config", "DESCRIPTION", "METRICS", "PAPER", "stage_graph"]
    knobs = [knob for knob in knobs_of(module.Config) if not knob.path.endswith(".corpus")]
    assert [knob.path for knob in knobs if not knob.description] == []


@each_system
def test_a_system_has_toys(path):
    """Without them the tests of this file that take arms test nothing of it."""
    assert arms_of(path), (
        f"{toys_of(path).relative_to(ROOT)} is missing or empty: give it ARMS, a config of every kind of arm "
        "at a size of seconds by name (trainables/README.md, step 6); the other files there show how"
    )


# --- defaults -------------------------------------------------------------------------------------------


def parts_of(config):
    """Parts with a default of their own, in a config and in its parts: class, field, default."""
    for name, field in config.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield config, name, field.default
            yield from parts_of(type(field.default))


@each_system
def test_one_setting_of_a_part_leaves_the_defaults_of_its_others(path):
    """A part may default to other values than its class: `fine_encoder: {norm: pre}` keeps its one layer."""
    for config, name, default in parts_of(load_system(path).config_type):
        field = config.model_fields[name]
        annotation = Annotated[field.annotation, *field.metadata, None]
        assert TypeAdapter(annotation).validate_python({}) == default, (
            f"{config.__name__}.{name}: annotate it with `defaulting` of nlgraft.stages.config_parts"
        )


# --- further test sets ----------------------------------------------------------------------------------


def in_files(corpus, directory, *, is_tested):
    """A constructed corpus as files with as many roles; if it is tested, with a further test set."""
    files = {"sources": []}
    for role in TypeAdapter(CorpusConfig).validate_python(corpus).roles:
        file = directory / f"{role.replace(' ', '-')}.txt"
        file.write_text("one\ntwo\n", "utf-8")
        if role.startswith("source"):
            files["sources"].append(str(file))
        else:
            files[role] = str(file)
    further = {"further_tests": {"more": files}} if is_tested else {}
    return {"corpus": "files", **dict.fromkeys(("train", "dev", "test"), files), **further}


DATA = {(path, json.dumps(arms_of(path)[arm]["data"])): arm for path, arm in ARMS}
"""An arm of each system and kind of data."""


@pytest.mark.parametrize(("path", "arm"), [(path, arm) for (path, _), arm in DATA.items()])
def test_further_test_sets_are_scored_or_refused(path, arm, tmp_path):
    system, values = load_system(path), arms_of(path)[arm]
    corpora = [key.removesuffix(".corpus") for key, _ in paths.leaves(values) if key.endswith(".corpus")]
    for tested in corpora:
        study = values
        for corpus in corpora:
            files = in_files(paths.get(values, corpus), tmp_path, is_tested=corpus == tested)
            study = changed(study, corpus, files)
        try:
            graph = graph_of(system, config_of(system, study))
        except ValidationError as refused:
            answer = str(refused)
        else:
            answer = str({stage.config.get("split") for stage in graph.stages})
        refusals = ("has further test sets (test_more), on which nothing", "further_tests\n  Extra inputs")
        assert "'test_more'" in answer or any(refusal in answer for refusal in refusals)


# --- every knob has an effect ---------------------------------------------------------------------------


def fingerprint_of(system, values):
    """The fingerprint of a trial with these settings; None if they are refused."""
    try:
        return graph_of(system, config_of(system, values)).fingerprint
    except (ValidationError, NlgraftError):
        return None


def effect_of(system, values, plain, path, others):
    """Tell if another value ``changes`` the trial, is ``refused`` or leaves it ``idle``."""
    effect = "refused"
    for other in others:
        fingerprint = fingerprint_of(system, changed(values, path, other))
        if fingerprint not in (None, plain):
            return "changes"
        effect = "idle" if fingerprint else effect
    return effect


def changing(system, values, plain, others):
    """Which settings change the trial by these other values, tried together since most change nothing."""
    together = functools.reduce(lambda settings, other: changed(settings, *other), others, values)
    fingerprint = fingerprint_of(system, together)
    if fingerprint == plain:
        return set()
    if len(others) == 1:
        return {path for path, _ in others if fingerprint}
    middle = len(others) // 2
    halves = (others[:middle], others[middle:])
    return set().union(*(changing(system, values, plain, half) for half in halves))


def is_accepted(system, values):
    try:
        return bool(config_of(system, values))
    except ValidationError:
        return False


def distinct_arms(system):
    """One arm of each set of stages and of conditions that hold: such arms read the same settings.

    Those with most stages come first.
    """
    arms = {}
    for arm, values in arms_of(system.path).items():
        config, declared = config_of(system, values), of_arm(system, values)
        whole = config.model_dump(mode="json")
        stages = frozenset(stage.name for stage in graph_of(system, config).stages)
        conditional = getattr(declared.config_type, "READ_WHEN", {})
        arms.setdefault((stages, *(declared.is_read(knob, whole) for knob in conditional)), (arm, config))
    return dict(arms[key] for key in sorted(arms, key=lambda key: -len(key[0])))


@each_system
def test_a_knob_has_an_effect_or_is_refused_where_it_is_said_to_be_read(path):
    system = load_system(path)
    idle, wrong = [], []
    effects = defaultdict(set)
    for arm, config in distinct_arms(system).items():
        values, whole = arms_of(path)[arm], config.model_dump(mode="json")
        fingerprint = graph_of(system, config).fingerprint
        unread = {}
        for knob, annotation, plain in leaves(config):
            others = [o for o in others_of(annotation, plain) if (type(o), o) != (type(plain), plain)]
            if not of_arm(system, values).is_read(knob, whole):
                others = [other for other in others if is_accepted(system, changed(values, knob, other))]
                effects[knob].add("idle" if others else "refused")
                for number, other in enumerate(others):
                    unread.setdefault(number, []).append((knob, other))
            elif not knob.startswith(CHOSEN) or "changes" not in effects[knob]:
                effect = effect_of(system, values, fingerprint, knob, others)
                effects[knob].add(effect)
                is_idle = effect == "idle" and not knob.startswith(CHOSEN)
                idle += [f"{knob} has no effect in {arm}"] * is_idle
        against = set().union(
            *(changing(system, values, fingerprint, settings) for settings in unread.values())
        )
        wrong += [f"{knob} has an effect in {arm}, against READ_WHEN" for knob in sorted(against)]
    never = [f"{knob} has no effect in any arm" for knob, kinds in effects.items() if kinds == {"idle"}]
    assert not idle + wrong + never, "\n".join(idle + wrong + never)


# --- every arm runs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One store for all arms: they share stages as those of a study do."""
    return ArtifactStore.open(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def written():
    """Metrics written so far, by system and arm."""
    return {}


@each_arm
def test_an_arm_runs_and_declares_its_metrics(path, arm, store, written):
    values = arms_of(path)[arm]
    system = of_arm(load_system(path), values)
    config = config_of(system, values)
    record = run_trial(
        graph_of(system, config),
        store,
        reporter=NullReporter(),
        config=config.model_dump(mode="json"),
        is_waiting=True,
        # As the process of a trial of several workers, who have the GPUs.
        device="given_by_StageKind_workers",
        distribute=lambda stage: execute_stage(stage, store, reporter=NullReporter()),
    )
    assert record.state == "finished", record.reason
    assert set(record.metrics) <= set(system.metrics)
    written.setdefault(path, {})[arm] = set(record.metrics)


def columns_of(graph, store):
    """The test sources of a trial by role, as its translation or its classifier reads them."""
    stage = graph.result.inputs.get("translations/test", graph.result)
    while "corpus" not in stage.inputs:
        [stage] = stage.inputs.values()
    return read_corpus(store.fetch(stage.inputs["corpus"]) / "test").streams()


def answers_of(graph, store):
    """What the trial itself said of each test example: a translation, or a label."""
    if (stage := graph.result.inputs.get("translations/test")) is not None:
        return read_lines(store.fetch(stage) / "hypotheses.txt")
    pairs = read_segments(store.fetch(graph.result), "test")["macro_f1"].argmax(1)
    corpus = store.fetch(graph.find("classifier").inputs["corpus"])
    labels = sorted(set(read_corpus(corpus / "train").labels or []))
    return [labels[pair % len(labels)] for pair in pairs]


@each_arm
def test_an_exported_arm_answers_as_its_trial_did(path, arm, store, tmp_path):
    """Sentence by sentence, from a directory that knows nothing of the store."""
    system = load_system(path)
    graph = graph_of(system, config_of(system, arms_of(path)[arm]))
    if not store.has(graph.result):
        pytest.skip("the arm did not run here: select this file as a whole, with --dist loadfile")
    if system.no_model:
        with pytest.raises(DataError, match="no model to take away"):
            write_directory(graph, store, tmp_path)
        return
    _, forms = write_directory(graph, store, tmp_path)
    model = ExportedModel(tmp_path)
    is_loaded = "loads this directory" in forms["transformers"]
    assert is_loaded == (tmp_path / "config.json").is_file()
    if model.task == "checkpoint":
        assert_loads(tmp_path, "a line")
        return
    streams = columns_of(graph, store)
    if model.task == "classification":
        assert model.classify(streams["source 0"]) == answers_of(graph, store)
        if is_loaded:
            assert_classifies_alike(tmp_path, model, streams["source 0"])
    else:
        columns = [streams[role] for role in model.columns if role in streams]
        if model.separator is not None:
            parts = [line.split(model.separator) for line in streams["source 0"]]
            columns = [list(column) for column in zip(*parts, strict=True)]
        assert model.translate(*columns) == answers_of(graph, store)
        if is_loaded:
            assert_translates_alike(tmp_path, streams[model.columns[0]])


@each_system
def test_every_declared_metric_is_written_by_some_arm(path, written):
    by_arm = written.get(path, {})
    if not by_arm or by_arm.keys() != arms_of(path).keys():
        pytest.skip("not all arms ran here: select this file as a whole, with --dist loadfile")
    declared = {name for name, metric in load_system(path).metrics.items() if not metric.is_derived}
    assert sorted(declared.difference(*by_arm.values())) == []


@each_system
def test_what_a_mean_is_over_is_a_fixed_metric(path):
    metrics = load_system(path).metrics
    counts = {metric.counted_by for metric in metrics.values()} - {""}
    assert not [name for name in counts if not metrics[name].is_fixed]


# --- two systems, one name for one thing ------------------------------------------------------------------


@pytest.mark.parametrize(("first_path", "second_path"), list(combinations(SYSTEMS, 2)))
def test_two_systems_name_one_thing_alike(first_path, second_path):
    first, second = load_system(first_path), load_system(second_path)
    meaning = operator.attrgetter("direction", "unit", "split")
    for name in set(first.metrics) & set(second.metrics):
        assert meaning(first.metrics[name]) == meaning(second.metrics[name]), name
    fields = [
        {name: str(info.annotation) for name, info in system.config_type.model_fields.items()}
        for system in (first, second)
    ]
    for annotation in {*fields[0].values()} & {*fields[1].values()}:
        if "nlgraft." not in annotation:  # a number or a switch can be anything
            continue
        names = [{name for name, kind in types.items() if kind == annotation} for types in fields]
        assert names[0] & names[1], f"{annotation} is called {names[0]} and {names[1]}"
