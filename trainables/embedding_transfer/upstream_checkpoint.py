"""What a released model that serves as upstream is to the stages that read it. No torch here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nlgraft.errors import DataError
from nlgraft.nn.identity import checkpoint_identity
from nlgraft.text.files import expand

STAGE_MODULES = {"denoising": "checkpoint", "masked_tokens": "bert_checkpoint"}
"""Where the stages are that read a checkpoint of each objective."""
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_DEFAULT_POSITIONS = 512


def checkpoint_parts(
    checkpoint: str, revision: str | None, *, is_bert: bool, max_tokens: int
) -> dict[str, Any]:
    """Say what a checkpoint is, by the bytes of its files or its name on the hub, and where it lies.

    Args:
        checkpoint: A directory, or the hub name of a BERT.
        revision: Commit, tag or branch of a hub name; None: main.
        is_bert: Whether it is a BERT, and no mBART.
        max_tokens: Longest text of the study without begin and end.

    Returns:
        ``config`` and ``locations`` of a stage.

    Raises:
        DataError: There is no such directory, it is given a revision, or its positions do not reach that far.
    """
    directory = expand(checkpoint)
    if directory.is_dir():
        if revision is not None:
            raise DataError(
                f"upstream.checkpoint {checkpoint} is a directory, and upstream.revision is {revision!r}: a "
                "directory has no revisions; leave it out"
            )
        if is_bert:
            _check_room(directory, max_tokens)
        return {"config": checkpoint_identity(checkpoint), "locations": {"path": str(directory)}}
    if is_bert and _HUB_NAME.fullmatch(checkpoint):
        said = checkpoint_identity(checkpoint) | {"revision": revision or "main"}
        return {"config": said, "locations": {"path": checkpoint}}
    also = " and no name on the Hugging Face hub" if is_bert else ""
    raise DataError(
        f"upstream.checkpoint is {checkpoint!r}, which is no directory{also}; download the checkpoint"
    )


def _check_room(directory: Path, max_tokens: int) -> None:
    try:
        settings = json.loads((directory / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"upstream.checkpoint {directory}: config.json cannot be read ({error}); it stands beside the "
            "weights of every checkpoint"
        ) from error
    room = settings.get("max_position_embeddings", _DEFAULT_POSITIONS) - 2
    if max_tokens > room:
        raise DataError(
            f"data.max_tokens is {max_tokens}, but upstream.checkpoint {directory} has room for {room} "
            f"tokens beside begin and end; set data.max_tokens to at most {room}"
        )
