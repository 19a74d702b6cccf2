"""Trials of llm_vocabulary from plain values."""

import json

from tests.unit.stages.runs import finish
from trainables.llm_vocabulary import METRICS, Config, stage_graph


def graph_of(values, splits=("dev", "test")):
    return stage_graph(Config.model_validate_json(json.dumps(values)), seed=1, splits=splits)


def run(store, values, **options):
    graph = graph_of(values, **options)
    return graph, finish(store, graph, metrics=METRICS)[0]
