"""A study under random faults: what is killed and started again, and the order in which it happens."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.processes import descendants, suspend
from tests.small_studies import SHARE


def search_of(document: Mapping[str, Any], pause_s: float) -> dict[str, Any]:
    """A study of the toy system as a search of 80 trials, two at once, each of three pauses."""
    return {
        **{key: value for key, value in document.items() if key != "factors"},
        "base": {**document["base"], "steps": 3, "pause_s": pause_s},
        "seeds": [1, 2],
        "search": {
            # what it proposes depends on no order of results
            "sampler": {"name": "random", "seed": 1},
            "space": {"gain": SHARE},
            "trials": 80,
        },
        "resources": {"max_concurrent": 2, "max_failures": 20},
    }


class Disturbed:
    """A process, with those of its group, that can be killed and started again."""

    process: subprocess.Popen[bytes]

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def kill(self) -> None:
        self.end()
        self.start()


class MlflowServer(Disturbed):
    """An MLflow server at one place, started again when it ends, as one does whose database is away.

    Args:
        directory: For its log.
        address: Host and port.
        database: URI of its database.
        artifacts: Where its artifacts go.
        enter: Begin of a command that runs another one elsewhere.
    """

    def __init__(
        self,
        directory: Path,
        address: tuple[str, int],
        database: str,
        artifacts: str,
        enter: Sequence[str] = (),
    ) -> None:
        self._log = directory / "server.log"
        host, port = address
        self.uri = f"http://{host}:{port}"
        self._command = [*enter, "sh", "-c", 'while :; do "$@"; sleep 1; done', "sh"]
        self._command += [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)]
        self._command += ["--workers", "1", "--backend-store-uri", database]
        self._command += ["--artifacts-destination", artifacts]
        super().__init__()

    def start(self) -> None:
        environ = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                self._command, env=environ, stdout=log, stderr=log, start_new_session=True
            )


class Driver(Disturbed):
    """`nlgraft run`, started again whenever it has ended before the study."""

    def __init__(
        self, directory: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._directory, self._command, self._environment = directory, command, environment
        super().__init__()

    def start(self) -> None:
        with (self._directory / "out").open("w") as out, (self._directory / "err").open("w") as err:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=out, stderr=err, start_new_session=True
            )

    def stop(self) -> bool:
        if self.process.poll() is not None:
            return False
        suspend(descendants(self.process.pid), 3)
        return True

    def is_finished(self) -> bool:
        """Start again if it has ended and says so; True if the study is finished."""
        if self.process.poll() is None:
            return False
        if self.process.returncode != 0:
            err = (self._directory / "err").read_text()
            assert "run the same command again to resume" in err.lower(), err
            self.start()
            return False
        return True

    def result(self) -> dict[str, Any]:
        return json.loads((self._directory / "out").read_text().splitlines()[-1])


def disturb(
    driver: Driver, faults: Mapping[str, Callable[[], bool | None]], *, seconds: float, seed: int
) -> Counter[str]:
    """Let faults happen while a study runs to its end, in rounds of all of them in random order.

    Args:
        faults: What does each; False if nothing was there to be broken, so that it comes again.
        seconds: When the faults end, though not within the first round.
        seed: Of the order and the pauses; what happened is printed, for a test that fails.
    """
    draw, done, kinds = random.Random(seed), Counter[str](), list[str]()
    start_s = time.monotonic()
    while not driver.is_finished():
        time.sleep(draw.uniform(2, 100 / len(faults)))  # a driver takes some ten seconds to start
        at_s = time.monotonic() - start_s
        if at_s > seconds and len(done) == len(faults):
            continue
        kinds = kinds or draw.sample(sorted(faults), len(faults))
        if faults[kinds[-1]]() is not False:
            print(f"{at_s:6.1f} s (seed {seed}): {kinds[-1]}")
            done[kinds.pop()] += 1
    print(f"{time.monotonic() - start_s:6.1f} s: the study has ended; {dict(done)}")
    return done
