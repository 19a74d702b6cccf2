"""`nlgraft` in this process, where its end as a process is not what is tested."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result

from nlgraft.commands.main import main


def nlgraft(*arguments: str | Path, code: int = 0, text: str | None = None) -> Result:
    """Run a command with this text as its input; it must end with this code, and without a traceback."""
    with mock.patch.dict(os.environ):
        result = CliRunner().invoke(main, [*map(str, arguments)], input=text)
    assert result.exit_code == code, (arguments, result.output, result.exception)
    assert isinstance(result.exception, SystemExit | None)
    return result


def json_of(*arguments: str | Path, code: int = 0) -> Any:
    """Run a command with an option by which it prints JSON."""
    return json.loads(nlgraft(*arguments, code=code).stdout)


def write_study(path: Path, document: dict[str, Any]) -> Path:
    """Write a study as JSON, which is YAML as well."""
    path.write_text(json.dumps(document))
    return path
