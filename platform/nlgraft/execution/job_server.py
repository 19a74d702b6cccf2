"""The jobs of a Ray cluster, found by the study that they run."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nlgraft.basics.errors import NlgraftError, StudyLockedError
from nlgraft.execution.cluster import use_token_if_present
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import study_key

_log = logging.getLogger(__name__)

_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_POLL_S = 1.0
_STOP_S = 120.0
_NUM_TRIES = 5
_NUM_FAILURES = 60
_NAME_CHARS = 32
_KEY_CHARS = 10


@dataclass(frozen=True)
class Job:
    """One job of a study.

    Attributes:
        job_id: Its submission id, by which Ray's own commands know it as well.
        state: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        command: What it runs.
        exit_code: Exit code of that; None while it runs, or if it was killed.
        message: What the job server says of it.
    """

    job_id: str
    state: str
    command: str
    exit_code: int | None = None
    message: str = ""

    @property
    def is_over(self) -> bool:
        """True once it has ended."""
        return self.state in _OVER


def job_name(study: Study) -> str:
    """Return how the ids of a study's jobs begin: its name, and the key of the lock that they run under."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", study.variant).strip("-")[:_NAME_CHARS]
    return f"nlgraft-{name}-{study_key(study)[:_KEY_CHARS]}"


class JobServer:
    """A job server, by Ray's public client.

    Args:
        address: E.g. ``http://HEAD:8265``; None uses ``RAY_API_SERVER_ADDRESS``.

    Raises:
        NlgraftError: It cannot be reached; every method raises the same.
    """

    def __init__(self, address: str | None) -> None:
        use_token_if_present()
        from ray.job_submission import JobSubmissionClient

        self._address = address
        with self._explained("does not answer"):
            self._client = JobSubmissionClient(address)

    def latest(self, name: str) -> Job | None:
        """Find the newest job of a study, by `job_name`; None if there is none."""
        numbered = self._numbered(name)
        return numbered[max(numbered)] if numbered else None

    def start(self, name: str, command: str, environment: Mapping[str, Any]) -> tuple[Job, bool]:
        """Start a job of a study, unless one runs.

        Returns:
            The job; True if it was started, False if it was running.

        Raises:
            StudyLockedError: A job of the study runs with another command.
        """
        for _ in range(_NUM_TRIES):
            numbered = self._numbered(name)
            last = numbered[max(numbered)] if numbered else None
            if last is not None and not last.is_over:
                return self._attached(last, command), False
            job_id = f"{name}-{max(numbered, default=0) + 1}"
            with self._explained("accepts no job"):
                try:
                    self._client.submit_job(
                        entrypoint=command, submission_id=job_id, runtime_env=dict(environment)
                    )
                except RuntimeError:
                    # The id is taken if somebody else submits the study at this moment.
                    if job_id not in {job.job_id for job in self._numbered(name).values()}:
                        raise
                    continue
            return Job(job_id, "PENDING", command), True
        raise NlgraftError(f"{name}: others submit the same study at this moment; try again")

    def follow(self, job: Job, tell: Callable[[str], object]) -> Job:
        """Pass on the output of a job until it has ended; return it as it ended.

        A connection that is lost is taken up where it broke; a server that does not answer for a minute is
        an error.
        """
        from aiohttp import ClientError  # of Ray's client; a broken connection need not be an OSError there

        num_told = num_failures = 0

        async def tail() -> None:
            nonlocal num_told
            seen = 0
            async for text in self._client.tail_job_logs(job.job_id):
                # Each connection begins at the first line.
                tell(text[max(0, num_told - seen) :])
                seen += len(text)
                num_told = max(num_told, seen)

        while True:
            try:
                asyncio.run(tail())
            except (RuntimeError, OSError, ClientError) as error:
                _log.debug("the output of %s broke off: %s", job.job_id, error)
            try:
                found = self.get(job.job_id)
                num_failures = 0
            except NlgraftError:
                num_failures += 1
                if num_failures > _NUM_FAILURES:
                    raise
                found = job
            if found.is_over:
                return found
            time.sleep(_POLL_S)

    def logs(self, job: Job) -> str:
        """Return the output of a job so far."""
        with self._explained("does not give the output"):
            return self._client.get_job_logs(job.job_id)

    def stop(self, job: Job) -> Job:
        """End a job, and wait until it has ended."""
        with self._explained("does not stop the job"):
            self._client.stop_job(job.job_id)
        end_s = time.monotonic() + _STOP_S
        while not (found := self.get(job.job_id)).is_over:
            if time.monotonic() > end_s:
                raise NlgraftError(f"job {job.job_id} still runs {_STOP_S:.0f} s after it was asked to end")
            time.sleep(_POLL_S)
        return found

    def get(self, job_id: str) -> Job:
        """Ask for the state of a job."""
        with self._explained("does not know the job"):
            return _job(self._client.get_job_info(job_id))

    def _numbered(self, name: str) -> dict[int, Job]:
        with self._explained("does not list its jobs"):
            listed = self._client.list_jobs()
        found = {}
        for details in listed:
            number = re.fullmatch(rf"{re.escape(name)}-(\d+)", details.submission_id or "")
            if number:
                found[int(number[1])] = _job(details)
        return found

    def _attached(self, job: Job, command: str) -> Job:
        if job.command == command:
            return job
        raise StudyLockedError(
            f"job {job.job_id} runs this study already, by another command: `{job.command}`. Wait until it "
            "has ended, or end it first (`nlgraft stop`)"
        )

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from ray.exceptions import RayError

        try:
            yield
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise NlgraftError(
                f"the job server at {self._address or 'the default address'} {what}: {error}. Start a "
                "cluster with `ray up cluster.yaml`, or give the URL of its dashboard as --address "
                "http://HEAD:8265; if the cluster uses token authentication, set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN_PATH"
            ) from error


def _job(details: Any) -> Job:
    return Job(
        details.submission_id,
        str(details.status.value),
        details.entrypoint,
        details.driver_exit_code,
        details.message or "",
    )
