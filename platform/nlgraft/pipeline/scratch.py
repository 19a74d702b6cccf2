"""Local directories that are written before they are published."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from nlgraft.pipeline.integrity import remove_tree
from nlgraft.pipeline.process import ProcessIdentity, is_dead, this_process
from nlgraft.pipeline.refusals import explained


class Scratch:
    """Directories below one root, each named after the process that made it.

    Args:
        root: On the file system to which finished directories are renamed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @explained("write")
    def new(self, fingerprint: str) -> Path:
        """Make an empty directory; the fingerprint in its name is for people."""
        process = this_process()
        # The host comes last, because it is the only part that may contain commas.
        name = f"{fingerprint[:16]},{process.pid},{process.started},{uuid.uuid4().hex[:8]},{process.host}"
        path = self.root / name
        path.mkdir(parents=True)
        return path

    @explained("write")
    def own(self, directory: Path, fingerprint: str) -> Path:
        """Return a directory made by `new` as it is, and a copy of any other."""
        if directory.parent == self.root:
            return directory
        path = self.new(fingerprint)
        shutil.copytree(directory, path, dirs_exist_ok=True)
        return path

    def remove_abandoned(self) -> None:
        """Remove the directories of processes of this host that have ended."""
        here = this_process()
        for path in self.root.iterdir() if self.root.is_dir() else ():
            parts = path.name.split(",", maxsplit=4)
            if len(parts) != 5 or parts[4] != here.host or not parts[1].isdecimal():
                continue
            if is_dead(ProcessIdentity(here.host, here.namespace, int(parts[1]), parts[2])):
                remove_tree(path)
