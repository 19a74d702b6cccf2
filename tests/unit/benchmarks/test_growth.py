"""What text costs that is larger than one would hold in memory several times."""

import pytest

from benchmarks.growth import large_text


@pytest.mark.slow
def test_memory_hardly_grows_with_the_text():
    """Of 200,000 pairs lists of lines took 140 MiB, lists of ids 450, and their copies in a training 140."""
    few, many = large_text(1_000), large_text(200_000)
    grown = {name: many[name].private_mib - few[name].private_mib for name in many}
    assert grown["corpus"] < 80
    assert grown["encoded"] < 80
    assert grown["training"] < 50
