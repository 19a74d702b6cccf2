"""Shared parts of the tests of bad studies: a good search, and changes to a document."""

from nlgraft.study.data.paths import put

SEARCH = {"trials": 2, "space": {"train.peak_lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}}}


def change(document, path, value):
    """Put a value at a path of a document, or leave the key out where the value is ``...``."""
    if value is ...:
        node = document
        *parents, last = path.split(".")
        for part in parents:
            node = node[part]
        del node[last]
    else:
        put(document, path, value)
    return document
