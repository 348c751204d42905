import os

from latency_budget.machine import cpu_s, machine, resident_mb


def test_the_machine_has_a_name_and_cores() -> None:
    name, _, cores = machine().rpartition(", ")
    assert name
    assert cores == f"{os.cpu_count()} cores"


def test_memory_of_a_process_and_of_none() -> None:
    here_mb = resident_mb(os.getpid())
    assert here_mb is None or here_mb > 1
    assert resident_mb(2**22 + 1) is None  # above the highest number that Linux gives


def test_processor_time_of_a_process_and_of_none() -> None:
    before_s = cpu_s(os.getpid())
    if before_s is not None:
        sum(number * number for number in range(3_000_000))
        assert (cpu_s(os.getpid()) or 0) > before_s
    assert cpu_s(2**22 + 1) is None
