"""A training that stands still ends with the stacks of its process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.processes import patient

ROOT = Path(__file__).parents[3]
CODE = """
import sys, time
from nlgraft.execution.cluster_watch import StallWatch
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.execute import THREADS

def wait_for_data(seconds):
    time.sleep(seconds)

def tell(reason, stacks):
    print("TOLD", reason)
    print(stacks, flush=True)

watch = StallWatch(NullReporter(), 2.0, {"training"}, tell)
print("ready", flush=True)
with THREADS.of_stage(sys.argv[1]):
    for _ in range(int(sys.argv[2])):
        watch.report(sys.argv[1], 1, {})
        wait_for_data(float(sys.argv[3]))
watch.close()
wait_for_data(3.0)
print("ended")
"""


def start(stage, num_reports, pause_s):
    path = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-c", CODE, stage, str(num_reports), str(pause_s)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_training_that_reports_nothing_ends_with_its_stacks():
    process = start("training", 1, 60.0)
    out, _ = process.communicate(timeout=patient(50))
    assert process.returncode == 1
    assert (
        "TOLD no progress for 2 s (resources.stall_timeout); it stood at <string>:8 in wait_for_data" in out
    )
    assert 'File "<string>", line 8 in wait_for_data' in out
    assert out.count("most recent call first") >= 2, "of every thread"


def test_a_training_that_reports_and_another_stage_that_does_not_go_on():
    processes = [start("training", 30, 0.1), start("corpus", 1, 4.0)]
    assert [process.communicate(timeout=patient(50))[0] for process in processes] == ["ready\nended\n"] * 2


def test_time_in_which_the_process_was_stopped_does_not_count():
    process = start("training", 1, 1.0)
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate(timeout=patient(50))[0] == "ended\n"
