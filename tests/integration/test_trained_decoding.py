"""Decoding with a model trained for minutes: who searches changes no line, and int8 no score."""

import pytest

from benchmarks.material import load_material
from benchmarks.trained_decoding import INT8, OURS, THEIRS, bleu, measure, trained


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ctranslate2_gives_the_same_lines_and_int8_the_same_bleu():
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2")
    material = load_material()
    _, found = measure(material, trained(material), num_rounds=1)
    assert len(found[OURS]) == 1000
    assert found[THEIRS] == found[OURS]
    assert found[INT8] != found[OURS]
    assert bleu(material, found[OURS]) > 10
    assert abs(bleu(material, found[INT8]) - bleu(material, found[OURS])) <= 0.2
