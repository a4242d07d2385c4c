"""A deny rule for commands holds wherever the command stands, and where that cannot be told the user is asked."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.agent.command_rules import judge
from nanocode.agent.policy import Decision, Policy
from nanocode.agent.rules import Rules, RulesError, load_rules
from nanocode.conversation import ToolCall

PUSH = ("git push*",)
DENIED = [
    "git push",
    "git push origin main",
    "  git \t push  ",
    "git status && git push",
    "true||git push",
    "ls; git push; ls",
    "ls\ngit push",
    "ls | git push",
    "git push &",
    "(cd x && git push)",
    "{ git push; }",
    "if true; then git push; fi",
    "for f in a b; do git push $f; done",
    "f() { git push; }; f",
    "case x in a) git push;; esac",
    "! git push",
    "time git push",
    "coproc git push",
    "echo $(git push)",
    'echo "a $(git push) b"',
    'x="$(git push)"',
    "diff <(git push) x",
    "/usr/bin/git push",
    "$HOME/bin/git push",
    "\\git push",
    "g''it p\"us\"h",
    "g\\\nit push",
    "A=1 B=2 git push",
    "git 2>/dev/null push",
    ">log git push",
    "git push $REMOTE",
    "git push # a comment",
    "git push <<E\nx\nE",
    "git push; cat <<E\nx\nE",
    "env A=1 git push",
    "sudo -u me git push",
    "nohup /usr/bin/git push",
    "timeout 5 git push",
    "ls | xargs git push",
    "find . -exec git push {} \\;",
    "bash -c 'cd x && git push'",
    "bash -c \"sh -c 'git push'\"",
    "eval git pu''sh",
    "eval 'git p'ush",
    "trap 'git push' EXIT",
]
ASKED = [
    "git $X",
    "$X push",
    "git {push,pull}",
    "git pus?",
    "echo push | xargs git",
    "`git push`",
    "cat <<E\ngit push\nE",
    "bash <<< 'git push'",
    "echo git push | sh",
    "echo git push | bash -x",
    "bash -s < f",
    "source <(echo git push)",
    'bash -c "$X"',
    'env bash -c "ls $X"',
    "echo $(case x in a) git push;; esac)",
    "echo ${x:-$(git push)}",
    "x=$((1 + 2))",
    "$'git' push",
    "echo 'unclosed",
    "echo $(unclosed",
    "$(" * 2_000,
    "eval " * 30 + "ls",
    "x" * 20_000,
]
FREE = [
    "git pull",
    "git log | head",
    "gitpush",
    "echo git push",
    "grep -rn 'git push' docs",
    "git commit -m 'x; git push'",
    "# git push",
    "echo a # ; git push",
    "echo x > 'git push'",
    "ls *.py",
    "echo $HOME ${HOME} $1 $?",
    "find . -name '*.py' -exec rm {} \\;",
    "timeout 5 python a.py",
    "ls | xargs rm",
    "bash run.sh",
    "[ -f a ] && [[ -f b ]]",
    "while read l; do echo $l; done < f 2>&1",
    "python -c 'print(1)'",
    "A=1",
    "",
]


@pytest.mark.parametrize(
    ("commands", "verdict"), [(DENIED, "deny"), (ASKED, "ask"), (FREE, None)], ids=["denied", "asked", "free"]
)
def test_what_is_said_of_a_command(commands: list[str], verdict: str | None) -> None:
    told = {command: judge(command, PUSH) for command in commands}
    wrong = {command: found for command, found in told.items() if (found and found.verdict) != verdict}
    assert not wrong


@pytest.mark.parametrize(
    ("pattern", "command", "denied"),
    [
        ("git push", "git push", True),
        ("git push", "git push origin", False),
        ("git push:*", "git push", True),
        ("git push:*", "git push origin", True),
        ("git push:*", "git pushed", False),
        ("git*push", "git -C d push", True),
        ("*", "cat <<E", True),
        ("rm *-rf*", "rm -v -rf x", True),
        ("rm *", "rm *", True),
        ("curl*", "/usr/bin/curl x", True),
        ("curl*", "CURL x", False),
    ],
)
def test_patterns(pattern: str, command: str, denied: bool) -> None:
    found = judge(command, (pattern,))
    assert (found is not None and found.verdict == "deny") == denied


def test_a_program_whose_name_is_not_known_could_be_a_shell() -> None:
    found = judge("$X -c 'git push'", ("git push",))
    assert found is not None and (found.verdict, "name is not known" in found.why) == ("ask", True)


def test_many_long_rules_on_a_long_command_are_no_burden() -> None:
    """Linear in the command: what is asked of it for every word would not end."""
    rules = tuple(f"tool{number} *{'x' * 50}*" for number in range(20))
    assert judge("env " + "a " * 4_900, rules) is None
    assert judge("eval " + "'a b' " * 1_500, rules) is None


WORDS = st.sampled_from(
    ["git", "push", "'git'", '"push"', "gi\\t", "$G", "$P", '"$G"', "pu''sh", "$GP", "x", "-c", "g*", "{git,push}"]
)
PREFIXES = st.sampled_from(
    [
        "",
        "A=1 ",
        "env ",
        "command ",
        "exec ",
        "eval ",
        "! ",
        "time ",
        ">f ",
        "2>f ",
        "echo ",
        "xargs ",
        "bash -c ",
        ": ",
    ]
)
SIMPLE = st.builds(lambda prefix, words: prefix + " ".join(words), PREFIXES, st.lists(WORDS, min_size=1, max_size=4))
LINES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.builds("{}{}{}".format, inner, st.sampled_from(["; ", " && ", " || ", " | ", "\n", " # "]), inner),
        inner.map("({})".format),
        inner.map("{{ {}; }}".format),
        inner.map("echo $({})".format),
        inner.map('x="$({})"'.format),
        inner.map("cat <({})".format),
        inner.map("`{}`".format),
        inner.map("if {}; then :; fi".format),
        inner.map("f() {{ {}; }}; f".format),
        inner.map(lambda text: f"bash -c '{text}'" if "'" not in text else text),
        inner.map(lambda text: f"eval '{text}'" if "'" not in text else text),
        inner.map(lambda text: f"echo '{text}' | bash" if "'" not in text else text),
        inner.map("cat <<E\n$({})\nE".format),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def tools() -> Iterator[Path]:
    """Programs that a line may call, and a git that writes down that it was told to push."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("env", "bash", "xargs", "cat"):
            (root / name).symlink_to(f"/usr/bin/{name}")
        (root / "git").write_text('#!/bin/sh\ncase "$1" in push*) : > "$RAN";; esac\n')
        (root / "git").chmod(0o755)
        yield root


@settings(max_examples=60, deadline=None)
@given(line=LINES)
def test_nothing_that_a_real_shell_makes_of_a_line_runs_what_is_denied(tools: Path, line: str) -> None:
    """Bash itself is the reference: whatever ends up calling git push was denied or asked for."""
    with tempfile.TemporaryDirectory() as folder:
        ran = Path(folder) / "ran"
        environment = {"PATH": str(tools), "RAN": str(ran), "G": "git", "P": "push", "GP": "git push"}
        subprocess.run(
            ["/usr/bin/bash", "-c", line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert not ran.exists() or judge(line, PUSH) is not None, line


@given(text=st.text(alphabet=" \t\n;&|()<>{}[]$`'\"\\#!=*?~abc0\0é", max_size=40))
def test_any_text_is_judged(text: str) -> None:
    found = judge(text, PUSH)
    assert found is None or found.verdict in ("deny", "ask")


def decide(mode: str, command: str, rules: Rules) -> Decision:
    return Policy(mode, rules=rules).decide(ToolCall("Bash", {"command": command}))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["plan", "ask", "auto-edit", "auto"])
def test_a_denied_command_is_denied_in_every_mode_and_no_allow_rule_lifts_that(mode: str) -> None:
    rules = Rules(deny_commands=PUSH, allow={"Bash": ("git push", "git $X")})
    assert decide(mode, "git push", rules) == Decision("deny", "the user's deny rule 'Bash(git push*)'")
    assert decide(mode, "ls; git push", rules).verdict == "deny"
    assert decide(mode, "git $X", rules).verdict == "allow", "an exact rule answers a question"


def test_what_is_not_certain_is_asked_for_and_the_rest_is_as_the_mode_says() -> None:
    rules = Rules(deny_commands=PUSH)
    assert decide("auto", "git pull", rules) == Decision("allow", "mode auto")
    asked = decide("auto", "git $X", rules)
    assert asked.verdict == "ask" and "'git push*' may fit" in asked.rule and "mode auto" in asked.rule
    assert "a here-document" in decide("auto", "cat <<E", rules).rule
    assert decide("ask", "git $X", rules) == Decision("ask", "mode ask")


def test_rules_for_commands_are_read_beside_those_for_paths(tmp_path: Path) -> None:
    file, workspace = tmp_path / "agent.toml", tmp_path / "work"
    workspace.mkdir()
    file.write_text('deny = ["*.pem", "Bash(git  push*)", "Bash( rm -rf * )", "copy(1).txt"]\n')
    rules = load_rules(file, workspace)
    assert (rules.deny, rules.deny_commands) == (("*.pem", "copy(1).txt"), ("git push*", "rm -rf *"))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("Bash( )", "names no command: write 'Bash\\(git push\\*\\)'"),
        ("Edit(src/*)", "a path is denied to all tools: write 'src/\\*'"),
    ],
)
def test_a_rule_that_would_never_fit_is_refused(tmp_path: Path, rule: str, said: str) -> None:
    file, workspace = tmp_path / "agent.toml", tmp_path / "work"
    workspace.mkdir()
    file.write_text(f'deny = ["{rule}"]\n')
    with pytest.raises(RulesError, match=said) as caught:
        load_rules(file, workspace)
    assert "\n" not in str(caught.value)
