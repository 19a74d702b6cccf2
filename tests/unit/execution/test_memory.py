"""Memory of worker processes that run one trial after another."""

from nlgraft.execution.cluster_watch import memory_shortage
from tests.processes import python

# a thread frees 300 MB of its arena below something small that stays
PROGRAM = """
import threading
from nlgraft.execution.cluster_watch import return_freed_memory

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

kept = []

def trial():
    many = [bytearray(100_000) for _ in range(3000)]
    kept.append(bytearray(100_000))

thread = threading.Thread(target=trial)
thread.start()
thread.join()
before = resident_mb()
return_freed_memory()
print(before, resident_mb())
"""
RAYS = (
    "Caught unexpected exception: 1 worker(s) were killed due to the node running low on memory. Memory on "
    "the node (IP: 10.0.0.7, ID: 7135) was 22.39GB used / 23.54GB limit (0.950958)"
)


def test_freed_memory_of_a_threads_arena_goes_back():
    done = python("-c", PROGRAM)
    before, after = map(float, done.stdout.split())
    assert before - after > 200


def test_a_lack_of_memory_says_what_to_do():
    message = str(memory_shortage(RuntimeError(RAYS)))
    assert "22.39GB used, Ray's limit is 23.54GB" in message
    assert "resources.max_concurrent" in message
    assert "finished stages are kept" in message
    assert "ran low on memory, so" in str(memory_shortage(RuntimeError("the node running low on memory")))
    assert memory_shortage(RuntimeError("another error")) is None
