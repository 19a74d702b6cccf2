"""The worked example agrees with trainables/README.md, is small and needs no stages of its own."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "minimal_system"


def test_the_steps_of_adding_a_system_give_the_example():
    text = (ROOT / "trainables" / "README.md").read_text("utf-8")
    blocks = [block.strip() for block in re.findall(r"```(?:python|yaml)\n(.*?)```", text, re.DOTALL)]
    for name in ("config.py", "metrics.py", "graph.py", "__init__.py", "study.yaml"):
        assert (EXAMPLE / name).read_text("utf-8").strip() in blocks, f"{name} is not in trainables/README.md"


def test_the_example_is_small():
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in EXAMPLE.glob("*.py"))
    assert lines <= 200


def test_the_example_has_no_stages_of_its_own():
    text = "".join(path.read_text("utf-8") for path in EXAMPLE.glob("*.py"))
    assert "torch" not in text.replace("No torch here", "")
