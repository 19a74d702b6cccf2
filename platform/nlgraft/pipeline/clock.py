"""The clock of the place that stamps files."""

from __future__ import annotations

import time
import uuid

from nlgraft.basics.errors import StoreError
from nlgraft.pipeline.local_files import Files

_VALID_S = 60.0


class PlaceClock:
    """The clock by which a place stamps its files; it may differ from this host's.

    Ages are differences of stamps of one clock, so hosts with skewed clocks judge alike.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._offset_s = 0.0
        self._read_at = float("-inf")

    def now(self) -> float:
        """Return the place's Unix time, by this host's clock if the place is not writable.

        The place is asked at most once a minute.
        """
        if time.monotonic() - self._read_at > _VALID_S:
            stamp = self._probe()
            # Monotonic in between: the wall clock of this host may be set while the process runs.
            self._read_at = time.monotonic()
            self._offset_s = (time.time() if stamp is None else stamp) - self._read_at
        return time.monotonic() + self._offset_s

    def _probe(self) -> float | None:
        """Write a file and return its stamp; None if the place cannot be written."""
        key = f"leases/.clock-{uuid.uuid4().hex}"
        try:
            self._files.write(key, b"")
        except StoreError:
            return None
        stamp = self._files.modified_at(key)
        self._files.delete(key)
        return stamp
