"""The filter decides as it says, run by an interpreter of its instructions that knows nothing of how it was built."""

import errno
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.agent import seccomp

X86, ARM = (seccomp.MACHINES[name][0] for name in ("x86_64", "aarch64"))
ALLOWED = "allowed"


def decide(machine: str, architecture: int, number: int, arguments: Sequence[int] = ()) -> str | int:
    """ALLOWED, or the error that the call gets."""
    code = seccomp.program(machine)
    assert code is not None
    lines = list(seccomp.INSTRUCTION.iter_unpack(code))
    words = {0: number, 4: architecture, **{16 + 8 * index: value for index, value in enumerate(arguments)}}
    accumulator, at = 0, 0
    while True:
        operation, yes, no, value = lines[at]
        at += 1
        if operation == 0x20:
            accumulator = words.get(value, 0)
        elif operation == 0x06:
            return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value}[operation]
            at += yes if holds else no


@pytest.mark.parametrize(("machine", "architecture", "column"), [("x86_64", X86, 0), ("aarch64", ARM, 1)])
def test_exactly_what_is_listed_is_refused(machine: str, architecture: int, column: int) -> None:
    refused = {*seccomp.COMMON, *(numbers[column] for numbers in seccomp.REFUSED.values())}
    asked = {number for number in range(600) if decide(machine, architecture, number, (1, 0, 0, 0)) == errno.EPERM}
    assert asked == refused


@pytest.mark.parametrize(
    ("number", "arguments", "answer"),
    [
        (90, (0, 0o755), ALLOWED),
        (90, (0, 0o4755), errno.EPERM),
        (91, (0, 0o2755), errno.EPERM),
        (268, (0, 0, 0o6755), errno.EPERM),
        (257, (0, 0, 0, 0o4755), ALLOWED),
        (257, (0, 0, 0o100, 0o4755), errno.EPERM),
        (257, (0, 0, 0o100, 0o644), ALLOWED),
        (2, (0, 0x400000, 0o2644), errno.EPERM),
        (41, (1, 1), ALLOWED),
        (41, (2, 1), ALLOWED),
        (41, (40, 1), errno.EAFNOSUPPORT),
        (16, (0, 0x5401), ALLOWED),
        (16, (0, 0x5412), errno.EPERM),
        (59, (), ALLOWED),
    ],
)
def test_some_calls_are_judged_by_their_arguments(number: int, arguments: tuple[int, ...], answer: object) -> None:
    assert decide("x86_64", X86, number, arguments) == answer


@given(st.integers(0, 0xFFFFFFFF), st.sampled_from([ARM, 0x40000003, 0]))
def test_another_architecture_gets_nothing(number: int, architecture: int) -> None:
    assert decide("x86_64", architecture, number) == errno.ENOSYS
    assert decide("x86_64", X86, 0x40000000 | number) == errno.ENOSYS


def test_jumps_are_short_enough_and_machines_that_are_not_known_have_no_filter() -> None:
    for machine in seccomp.MACHINES:
        code = seccomp.program(machine)
        assert code is not None and len(code) // seccomp.INSTRUCTION.size < 4096
    assert seccomp.program("riscv64") is None
