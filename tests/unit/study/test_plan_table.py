"""The table of text that `nlgraft plan` prints."""

from types import SimpleNamespace

from nlgraft.commands.terminal import plan_table


def test_the_words_of_three_sources_and_the_target_fit_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = {"source 0": 6434, "source 1": 6755, "source 2": 5122, "target": 6181}
    report = {"num_examples": 540, "num_words": words, "num_empty_lines": 0, "num_in_train": 3}
    others = {f"text_{language}_text": 540 for language in ("cs", "de", "en", "fr")}
    plan = SimpleNamespace(
        study=SimpleNamespace(variant="mine"),
        facts=lambda: [("cells", 5)],
        corpora={"task_corpus": {"test": report | {"num_in_other_train": others}}},
    )
    plan_table(plan)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == ["corpus", "split", "examples", "words", "empty", "lines", "in", "train"]
    assert lines[4] == "task_corpus   test       540  6434 + 6755 + 5122 → 6181            0         3"
    assert " ".join(" ".join(lines[5:]).split()) == (
        "task_corpus, test, is also in train of text_cs_text (540), text_de_text (540), text_en_text (540), "
        "text_fr_text (540)"
    )
