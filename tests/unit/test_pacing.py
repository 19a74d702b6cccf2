"""Work that is repeated as often as its cost allows."""

from nlgraft.basics.pacing import Pacer


def test_work_waits_for_its_pause_or_for_its_share_of_the_time_whichever_is_longer():
    clock_s = 0.0
    pacer = Pacer(0.5, 0.1, lambda: clock_s)
    for took_s, pause_s in ((0.01, 0.5), (1.0, 10.0)):
        assert pacer.is_due
        with pacer.turn():
            clock_s += took_s
        clock_s += pause_s - 0.01
        assert not pacer.is_due
        clock_s += 0.02
