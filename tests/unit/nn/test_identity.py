"""Identity of pretrained checkpoints."""

import os

from nlgraft.nn.checkpoint_files import checkpoint_identity


def test_identity_is_that_of_the_bytes(tmp_path):
    """Wherever the directory lies; another byte, name or file is another checkpoint."""
    assert checkpoint_identity("facebook/mbart-large-cc25") == {"checkpoint": "facebook/mbart-large-cc25"}
    seen = []
    for number, files in enumerate(
        (
            {"a": b"12", "b": b"3"},
            {"a": b"1", "b": b"23"},
            {"a": b"12", "c": b"3"},
            {"a": b"12"},
            {"a": b"13", "b": b"3"},
        )
    ):
        identities = []
        for place in ("here", "there"):
            directory = tmp_path / place / str(number)
            directory.mkdir(parents=True)
            for name, content in files.items():
                (directory / name).write_bytes(content)
            identities.append(checkpoint_identity(str(directory)))
        assert identities[0] == identities[1]
        assert identities[0] not in seen
        seen.append(identities[0])
    changed = tmp_path / "here" / "0"
    before = checkpoint_identity(str(changed))
    (changed / "b").write_bytes(b"4")
    os.utime(changed / "b", ns=(1, 1))
    assert checkpoint_identity(str(changed)) != before
