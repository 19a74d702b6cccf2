"""Summaries taken from the text itself."""

from nlgraft.evaluation.overlap import lead, oracle, sentences

TEXT = "A red fox ran. Dogs sleep all day! Who saw the fox?"


def test_sentences_end_at_marks_before_spaces():
    assert sentences(TEXT) == ["A red fox ran.", "Dogs sleep all day!", "Who saw the fox?"]
    assert sentences("version 2.5 of it") == ["version 2.5 of it"]


def test_lead():
    assert lead(TEXT, 2) == "A red fox ran. Dogs sleep all day!"
    assert lead("One.", 3) == "One."


def test_the_oracle_takes_the_nearest_sentences_in_their_order():
    assert oracle(TEXT, "who saw the fox", 1) == "Who saw the fox?"
    assert oracle(TEXT, "who saw the fox a red fox ran", 3) == "A red fox ran. Who saw the fox?"
    assert oracle(TEXT, "who saw the fox", 3) == "Who saw the fox?", "another sentence would not raise it"
    assert oracle(TEXT, "nothing alike", 1) in sentences(TEXT)
