"""`make size` counts what a reader has to read."""

import pytest

from benchmarks.size import Size, size_of, sizes

MODULE = '''"""A docstring of
two lines."""

# Why.
x = 1  # beside code


def f(found):
    """Say nothing."""
    return [
        found,
    ]
'''


def test_a_module_is_counted_by_hand():
    # x = 1 | def f ( found ) : | return [ | found , | ]
    assert size_of(MODULE) == Size(
        modules=1,
        lines=12,
        code_lines=5,
        tokens=3 + 6 + 2 + 2 + 1,
        comments=1,
        functions=1,
        vague_functions=1,
    )


@pytest.mark.parametrize(("name", "num_vague"), [("found", 1), ("scores", 0)])
def test_a_name_that_says_nothing_counts_where_it_is_stored(name, num_vague):
    assert size_of(f"def f():\n    {name} = 1\n    return {name}\n").vague_functions == num_vague


def test_rooms_are_two_folders_deep(tmp_path):
    for place in ("a.py", "room/b.py", "room/part/c.py", "room/part/deep/d.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("x = 1\n")
    counted = {name.partition("/")[2]: size.modules for name, size in sizes(tmp_path).items()}
    assert counted == {"": 1, "room": 1, "room/part": 2}
