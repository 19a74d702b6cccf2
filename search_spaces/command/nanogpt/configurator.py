"""Overrides the globals of a script by --name=value, as nanoGPT does."""

import sys
from ast import literal_eval

for argument in sys.argv[1:]:
    name, value = argument.removeprefix("--").split("=", 1)
    try:
        value = literal_eval(value)
    except (ValueError, SyntaxError):
        pass
    assert name in globals(), f"unknown setting {name}"
    globals()[name] = value
