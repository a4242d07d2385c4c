"""Grep takes patterns as patterns, comes back in time and reads nothing outside."""

import time
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.agent import search
from nanocode.agent.files import ToolError, Workspace
from nanocode.agent.matching import backtracking, compile_pattern, first_matches

HERE = PurePosixPath(".")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "repo" / "b").mkdir(parents=True)
    (tmp_path / "repo" / "a.py").write_text("def one():\n    return 1\r\n")
    (tmp_path / "repo" / "b" / "c.py").write_text("one()\n--pre=x\n")
    return Workspace.at(tmp_path / "repo")


def grep(workspace: Workspace, pattern: str, path: PurePosixPath = HERE, limit: int = 50) -> str:
    return search.grep(workspace, pattern, path, limit)


def test_matches_are_sorted_and_relative(workspace: Workspace) -> None:
    assert grep(workspace, "one") == "a.py:1:def one():\nb/c.py:1:one()"
    assert grep(workspace, "return", PurePosixPath("a.py")) == "a.py:2:    return 1"
    assert grep(workspace, "one", PurePosixPath("b")) == "b/c.py:1:one()"
    assert grep(workspace, r"^\s+return \d$") == "a.py:2:    return 1"
    assert grep(workspace, "two") == "no matches"


def test_a_pattern_that_looks_like_an_option_is_a_pattern(workspace: Workspace) -> None:
    # `grep -rn PATTERN` runs or reads what the model names: --pre=COMMAND, -f/etc/passwd.
    assert grep(workspace, "--pre=x") == "b/c.py:2:--pre=x"
    for pattern in ("-f/etc/passwd", "--include=*", "-e", "--"):
        assert "root" not in grep(workspace, pattern)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "invalid pattern: missing ), unterminated subpattern at position 0"),
        ("", "pattern is empty"),
        ("a" * 1_001, "longer than 1000"),
        ("a{99999999999}", "invalid pattern"),
        ("(" * 999, "invalid pattern"),
    ],
)
def test_bad_patterns_are_errors(workspace: Workspace, pattern: str, message: str) -> None:
    with pytest.raises(ToolError) as refused:
        grep(workspace, pattern)
    assert message in str(refused.value)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$", r"(?:a*)*b", r"(.*)(.*)(.*)(.*)(.*)x$"])
def test_a_catastrophic_pattern_is_stopped(workspace: Workspace, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A running match cannot be interrupted from within, so it must not run in this process.
    monkeypatch.setattr(search, "CHILD_SECONDS", 0.5)
    (workspace.root / "trap.txt").write_text("a" * 5_000 + "!\n")
    started = time.monotonic()
    with pytest.raises(ToolError, match="make it simpler"):
        grep(workspace, pattern)
    assert time.monotonic() - started < 20


def test_one_repeat_over_a_very_long_line_does_not_run_in_this_process(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CHILD_SECONDS", 0.5)
    (workspace.root / "minified.js").write_text("a" * 900_000)
    with pytest.raises(ToolError, match="make it simpler"):
        grep(workspace, "a*x")


def test_the_child_finds_what_this_process_finds(workspace: Workspace) -> None:
    texts = [("a", "xay\nb\n"), ("b", "aaa\u00e9\n" * 3)]
    for pattern in ("a", "(a+)+", "\u00e9", "none"):
        here = first_matches(compile_pattern(pattern), texts, 2)
        assert search._search_in_child(pattern, texts, 2) == here


@pytest.mark.parametrize("pattern", ["def foo", r"a|b|[cd]", "a?b{2,3}", "x(?:one|two)y", "a.b"])
def test_patterns_without_repeats_are_harmless_on_any_line(pattern: str) -> None:
    assert backtracking(pattern).harmless_for(1_000_000)


@pytest.mark.parametrize("pattern", [r"def \w+", r"^\s*return", "a{1,1000}b", "(one|two) *"])
def test_a_single_repeat_is_harmless_on_lines_that_people_write(pattern: str) -> None:
    assert backtracking(pattern).harmless_for(200) and not backtracking(pattern).harmless_for(100_000)


@pytest.mark.parametrize(
    "pattern", ["(a+)+", "(a*b?)*", "(ab|a)*", "((a{1,99})b){5}", r"(a)\1*", "a.*b.*c", "a?" * 30 + "a" * 30, "a*+b.*c"]
)
def test_patterns_that_can_backtrack_without_bound_are_not_harmless(pattern: str) -> None:
    assert not backtracking(pattern).harmless_for(50)


def test_binary_and_oversized_files_and_links_are_skipped(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("one outside\n")
    (workspace.root / "link.py").symlink_to(tmp_path / "outside.py")
    (workspace.root / "binary").write_bytes(b"one\0")
    (workspace.root / "big").write_bytes(b"one\n" * 500_000)
    (workspace.root / ".git").mkdir()
    (workspace.root / ".git" / "config").write_text("one\n")
    assert grep(workspace, "one") == "a.py:1:def one():\nb/c.py:1:one()"
    with pytest.raises(ToolError, match="is a symbolic link"):
        grep(workspace, "one", PurePosixPath("link.py"))


def test_matches_lines_and_files_are_bounded(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace.root / "many").write_text("needle\n" * 57 + "needle" + "x" * 500)
    rows = grep(workspace, "needle").split("\n")
    assert len(rows) == 51 and rows[-1] == "... 8 more matches"
    assert len(grep(workspace, "needlex").split(":", 2)[2]) == 200
    assert grep(workspace, "needle", limit=57).endswith("\n... 1 more match")
    monkeypatch.setattr(search, "MAX_FILES", 1)
    assert grep(workspace, "one") == "a.py:1:def one():\n... stopped: too many files, give a path"


def test_a_search_of_a_literal_is_quick(workspace: Workspace) -> None:
    for number in range(100):
        (workspace.root / f"{number}.py").write_text("x = 1\n" * 200)
    started = time.monotonic()
    grep(workspace, "one")
    assert time.monotonic() - started < 5


@given(st.text(max_size=12))
def test_any_text_is_a_pattern_or_an_error(pattern: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except ValueError as error:
        assert str(error)
        return
    if backtracking(pattern).harmless_for(9):
        first_matches(compiled, [("f", "some text\n")], 5)
