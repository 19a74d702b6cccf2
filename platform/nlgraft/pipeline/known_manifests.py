"""Some manifests of each stage name, to explain a miss and to estimate costs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from nlgraft.pipeline.artifacts import Artifacts
from nlgraft.pipeline.integrity import ArtifactDamaged
from nlgraft.pipeline.local_files import Files
from nlgraft.pipeline.manifest import Manifest

_LIST_SHARE = 0.02
"""Share of the time that may go into listing: a folder of 10,000 artifacts takes 30 ms."""


class KnownManifests:
    """The newest manifests by stage name (any, in an object store), each read once: artifacts never change.

    What other processes publish is seen at the next listing, what this one publishes at once.

    Args:
        files: The store's files.
        artifacts: The store's artifacts.
        limit: How many are kept of one name.
        clock: Monotonic seconds.
    """

    def __init__(
        self, files: Files, artifacts: Artifacts, limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._artifacts = artifacts
        self._limit = limit
        self._clock = clock
        self._known: dict[str, deque[Manifest]] = {}
        self._next_look_s: dict[str, float] = {}

    def add(self, manifest: Manifest) -> None:
        """Remember an artifact that this process has published."""
        known = self._known.get(manifest.name)
        if known is not None:  # else the first listing finds it
            known.appendleft(manifest)

    def of(self, name: str) -> list[Manifest]:
        """Return manifests of a stage name, newest first on a local store."""
        now_s = self._clock()
        if now_s >= self._next_look_s.get(name, now_s):
            self._known[name] = self._listed(name)
            took_s = self._clock() - now_s
            self._next_look_s[name] = self._clock() + took_s / _LIST_SHARE
        return list(self._known[name])

    def _listed(self, name: str) -> deque[Manifest]:
        read = {manifest.fingerprint: manifest for manifest in self._known.get(name, ())}
        listed: deque[Manifest] = deque(maxlen=self._limit)
        for fingerprint in self._files.names(f"artifacts/{name}")[: self._limit]:
            try:
                manifest = read.get(fingerprint) or self._artifacts.manifest(name, fingerprint)
            except ArtifactDamaged:
                continue
            if manifest is not None:  # else it is being published
                listed.append(manifest)
        return listed
