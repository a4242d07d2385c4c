"""How an error ends at the command line: one line that says what is wrong, and an exit code."""

from __future__ import annotations

FAILED = 1
WRONG_USE = 2

_FIRST_PARTY = ("nanocode", "steps", "artifacts")
_WRONG_USE = frozenset(
    {
        "nanocode.config.section.ConfigError",
        "artifacts.releases.UnknownModel",
        "artifacts.store.WrongStore",
    }
)


def exit_code(error: BaseException) -> int:
    """2 when the user can put it right by asking differently (config, model name, store URL), else 1."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    return WRONG_USE if names & _WRONG_USE else FAILED


def one_line(error: BaseException) -> str:
    """The message in one line.

    Errors of this project and of the system speak for themselves; any other is a bug and says so.
    """
    message = " ".join(str(error).split())
    if type(error).__module__.partition(".")[0] in _FIRST_PARTY or isinstance(error, OSError):
        return message or type(error).__name__
    return f"unexpected {type(error).__name__}: {message} (a bug in nanocode; --debug before the command shows where)"
