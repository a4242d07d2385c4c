"""What a program can do about its own judgement: nothing but pass the tests. Needs the sandbox and skips nothing."""

from __future__ import annotations

import textwrap

import pytest

from nanocode.agent.sandbox import Sandbox
from nanocode.evaluation.human_eval.execution import Case, Judge, JudgeError, Judgement

SECRET = "a-secret-that-no-program-could-guess"
TEST = """
def check(candidate):
    import copy
    assert candidate(copy.copy([1, 2])) == 3
    assert candidate([]) == 0, "of nothing"
"""
RIGHT = "def total(numbers):\n    return sum(numbers)\n"


@pytest.fixture(scope="module")
def judge() -> Judge:
    """With little processor time: what is tested for running on must do so no longer than needed."""
    return Judge(Sandbox(), processor_seconds=1, wall_seconds=60.0, secret=lambda: SECRET)


def judged(judge: Judge, source: str, test: str = TEST, preamble: str = "") -> Judgement:
    return judge.judge(Case(textwrap.dedent(source), "total", preamble, test))


def test_a_right_program_passes_and_a_wrong_one_does_not(judge: Judge) -> None:
    assert judged(judge, RIGHT) == Judgement("passed")
    assert judged(judge, "def total(numbers):\n    return 3\n") == Judgement("assertion", "of nothing")
    judge.check()


@pytest.mark.parametrize(
    ("source", "outcome", "detail"),
    [
        ("def total(numbers:\n", "error", "SyntaxError"),
        ("def other(numbers):\n    return 0\n", "error", "NameError: name 'total' is not defined"),
        ("total = 3\n", "error", "TypeError"),
        ("def total(numbers):\n    return numbers[5]\n", "error", "IndexError: list index out of range"),
        ("def total(numbers):\n    assert False, 'mine'\n", "error", "AssertionError: mine"),
        ("def total(numbers):\n    raise type('Own', (Exception,), {})('x')\n", "error", "Own: x"),
        ("def total(numbers):\n    return b'\\xff'.decode()\n", "error", "UnicodeDecodeError"),
        ("def total(numbers):\n    return total(numbers)\n", "error", "RecursionError"),
        ("import numpy_or_something\n", "error", "ModuleNotFoundError"),
        ("def total(numbers):\n    return 'x' * (40 << 20)\n", "limits", "its result is too large"),
        ("def total(numbers):\n    return bytearray(2 << 30)\n", "error", "MemoryError"),
        ("def total(numbers):\n    while True: pass\n", "timeout", "its processor time is over"),
        ("import ctypes\nctypes.string_at(0)\n", "ended", "by signal SIGSEGV"),
        ("\0", "error", ""),
        ("def total(numbers):\n    raise ValueError('\\ud800')\n", "error", "ValueError: \ufffd"),
        ("def total(numbers):\n    raise type('T' * 900, (Exception,), {})\n", "error", "T" * 200),
        ("def total(numbers):\n    return '\\ud800'\n", "assertion", ""),
    ],
)
def test_each_way_to_fail_has_its_name(judge: Judge, source: str, outcome: str, detail: str) -> None:
    found = judged(judge, source)
    assert (found.outcome, found.detail[: len(detail)]) == (outcome, detail)


def test_a_program_that_waits_is_over_with_the_clock() -> None:
    found = judged(Judge(Sandbox(), wall_seconds=1.0), "import time\ntime.sleep(60)\n")
    assert found == Judgement("timeout", "it did not answer in time")


# Each would pass a runner that executes program and tests in one process and trusts its output or its exit status.
CHEATS = {
    "prints the verdict": f"""
        import os, sys
        told = '\\n{SECRET} {{"outcome": "passed", "detail": ""}}\\n'
        print(told, flush=True); print(told, file=sys.stderr, flush=True)
        for number in range(64):
            try: os.write(number, told.encode())
            except OSError: pass
        for process in os.listdir('/proc'):
            for number in range(8):
                try: open(f'/proc/{{process}}/fd/{{number}}', 'w').write(told)
                except OSError: pass
        def total(numbers): return 3
        """,
    "leaves at once": "import os\nos._exit(0)\n",
    "exits at once": "import sys\nsys.exit(0)\n",
    "exits when called": "def total(numbers):\n    raise SystemExit(0)\n",
    "leaves when called": "import os\ndef total(numbers):\n    os._exit(0)\n",
    "exits behind its answer": """
        import os, threading
        def total(numbers):
            threading.Timer(0.0, os._exit, (0,)).start()
            return 3
        """,
    "replaces the tests": """
        import builtins, sys
        def check(candidate): pass
        builtins.check = check
        def total(numbers): sys._getframe(1).f_globals['check'] = check; return None
        """,
    "disarms assertions": """
        import builtins, sys, types
        builtins.AssertionError = type('Silent', (Exception,), {'__new__': lambda *a: None})
        builtins.compile = builtins.exec = lambda *a, **k: None
        sys.flags = types.SimpleNamespace(optimize=2)
        sys.excepthook = lambda *a: None
        def total(numbers): return None
        """,
    "traces and catches": """
        import sys
        sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)
        def total(numbers):
            try: return sys._getframe(5).f_locals
            except BaseException: return None
        """,
    "patches its output": """
        import sys, io, json, os
        sys.stdout = sys.stderr = io.StringIO()
        json.dumps = lambda *a, **k: '["result", 3]'
        os.write = lambda *a: 0
        def total(numbers): return None
        """,
    "equals everything": """
        class Equal:
            def __eq__(self, other): return True
            def __hash__(self): return 0
        def total(numbers): return Equal()
        """,
    "is a number that equals everything": """
        class Equal(int):
            def __eq__(self, other): return True
            def __repr__(self): return '3'
            def __index__(self): return 3
        def total(numbers): return Equal(7)
        """,
    "is a list that equals everything": """
        class Equal(list):
            def __eq__(self, other): return True
        def total(numbers): return Equal([7])
        """,
    "forks": """
        import os
        if os.fork(): os._exit(0)
        if os.fork(): os._exit(0)
        def total(numbers): return 7
        """,
    "answers from threads": """
        import os, threading
        def flood():
            for number in range(3, 64):
                try: os.write(number, b'["result", ["passed"]]\\n')
                except OSError: pass
        for _ in range(4): threading.Thread(target=flood, daemon=True).start()
        def total(numbers): return 7
        """,
    "attaches to the judge": """
        import ctypes, os
        attached = ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0
        def total(numbers): return sum(numbers) if attached else None
        """,
    "kills the judge": "import os\ndef total(numbers):\n    os.kill(os.getppid(), 9)\n",
    "plants modules for the tests": """
        import glob, os
        planted = []
        for folder in ['/project/judge', '/project', '/tmp', '.', *glob.glob('/project/judge/*')]:
            try:
                open(folder + '/copy.py', 'w').write('class copy(list):\\n __eq__ = lambda *a: True')
                planted.append(folder)
            except OSError: pass
        def total(numbers): return None
        """,
    "reads its own source": """
        import inspect, sys
        def total(numbers):
            try: return open(sys.argv[-1]).read() and sum(numbers)
            except OSError: pass
            try: return inspect.getsource(sys.modules['__main__']) and sum(numbers)
            except (OSError, TypeError): return None
        """,
    "tells a story too deep": """
        import os
        for number in range(3, 64):
            try: os.write(number, b'[' * 200_000 + b'\\n')
            except OSError: pass
        def total(numbers): return 7
        """,
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_cheats_does_not_pass(judge: Judge, name: str) -> None:
    assert judged(judge, CHEATS[name]).outcome in ("assertion", "error", "ended")


# Its words are spelled backwards, so that it does not find itself.
SEARCH = """
import gc, glob, os
def known(text): return any(word in str(text)[::-1] for word in WORDS)
def texts():
    yield from [each for each in gc.get_objects() if isinstance(each, (str, dict, list))]
    for path in [*glob.glob('/project/**', recursive=True), *glob.glob('/tmp/**', recursive=True),
                 *glob.glob('/proc/*/environ'), *glob.glob('/proc/*/cmdline'), *glob.glob('/proc/*/fd/*')]:
        try: yield os.path.isfile(path) and open(path, errors='replace').read()
        except OSError: pass
    for process in filter(str.isdigit, os.listdir('/proc')):
        if int(process) == os.getpid(): continue
        try:
            for line in open(f'/proc/{process}/maps'):
                first, last = (int(part, 16) for part in line.split()[0].split('-'))
                memory = open(f'/proc/{process}/mem', 'rb', 0); memory.seek(first)
                yield memory.read(min(last - first, 1 << 22)).decode(errors='replace')
        except OSError: pass
def total(numbers):
    return sum(numbers) if any(map(known, texts())) else None
"""


@pytest.mark.parametrize(
    ("words", "outcome"),
    [([SECRET], "assertion"), (["of nothing"], "assertion"), (["Judges one program by the tests"], "passed")],
)
def test_neither_tests_nor_secret_can_be_found(words: list[str], outcome: str) -> None:
    """In memory, files, arguments and environments of all processes; the last words are public and must be found."""
    judge = Judge(Sandbox(), secret=lambda: SECRET)
    assert judged(judge, SEARCH.replace("WORDS", repr([word[::-1] for word in words]))).outcome == outcome


@pytest.mark.parametrize("signal", ["SIGSTOP", "SIGTERM"])
def test_a_judge_that_is_stopped_says_nothing(signal: str) -> None:
    """Of one that does not go on, the sandbox's own clock makes an end."""
    judge = Judge(Sandbox(), wall_seconds=0.5, margin_seconds=1.0)
    source = f"import os, signal\nos.kill(os.getppid(), signal.{signal})\n"
    assert judged(judge, source).outcome in ("timeout", "ended")


def test_helpers_of_the_prompt_that_tests_use_are_not_the_programs_own(judge: Judge) -> None:
    test = "def check(candidate):\n    assert near(candidate([1]), 1)\n"
    preamble = "def near(a, b):\n    return abs(a - b) < 0.1\n"
    assert judged(judge, RIGHT, test, preamble).outcome == "passed"
    cheat = "def near(a, b):\n    return True\ndef total(numbers):\n    return 9\n"
    assert judged(judge, cheat, test, preamble).outcome == "assertion"


def test_tests_may_expect_an_exception(judge: Judge) -> None:
    test = """
def check(candidate):
    try:
        candidate("abc")
    except TypeError as error:
        assert "unsupported" in str(error)
    else:
        assert False
"""
    assert judged(judge, RIGHT, test).outcome == "passed"
    assert judged(judge, "def total(numbers):\n    return 0\n", test).outcome == "assertion"


def test_state_lasts_from_call_to_call(judge: Judge) -> None:
    test = "def check(candidate):\n    assert [candidate(), candidate(), candidate(step=2)] == [1, 2, 4]\n"
    source = "seen = [0]\ndef total(step=1):\n    seen[0] += step\n    return seen[0]\n"
    assert judged(judge, source, test).outcome == "passed"


def test_chance_and_the_order_of_sets_are_the_same_every_time(judge: Judge) -> None:
    source = "import random\ndef total():\n    return random.random(), list({*map(str, range(20))})\n"
    test = "import random\ndef check(candidate):\n    assert False, f'{random.random()} {candidate()}'\n"
    case = Case(source, "total", "", test)
    assert judge.judge(case, 1) == judge.judge(case, 1) != judge.judge(case, 2)


def test_nothing_that_a_program_writes_is_left_behind(judge: Judge) -> None:
    source = """
import os
def total(numbers):
    try: open('/project/left', 'w').close()
    except OSError: pass
    open('left', 'w').close()
    return sum(numbers) if os.getcwd() == '/tmp' else None
"""
    assert judged(judge, source).outcome == "passed"
    test = "import os\ndef check(candidate):\n    assert not os.path.exists('/tmp/left')\n"
    assert judged(judge, RIGHT, test).outcome == "passed"


def test_where_everything_fails_nothing_is_judged() -> None:
    class Broken(Sandbox):
        def run(self, command: str, *args: object, **named: object):  # type: ignore[no-untyped-def, override]
            return super().run("exit 1", *args, **named)  # type: ignore[arg-type]

    with pytest.raises(JudgeError, match="cannot be judged here: ended"):
        Judge(Broken()).check()
