from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.evaluation.human_eval.extraction import (
    code_in_reply,
    completed_program,
    cut_completion,
    preamble,
    replied_program,
)

PROMPT = '''import math


def half(x):
    return x / 2


def area(radius: float) -> float:
    """ Area of a circle.
    >>> area(0)
    0.0
    """
'''
FUNCTION = "def area(radius):\n    return math.pi * radius**2"


def found(reply: str) -> str:
    return code_in_reply(textwrap.dedent(reply), "area")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("    return 1\n", "    return 1\n"),
        ("    return 1\n\ndef other():\n    pass", "    return 1\n"),
        ("    return 1\nclass A:\n    pass", "    return 1"),
        ("    return 1\n# the end", "    return 1"),
        ("    return 1\nif __name__ == '__main__':\n    print(2)", "    return 1"),
        ("    return 1\nprint(area(2))\ndef x(): pass", "    return 1"),
        (
            "    # a comment inside\n    if x:\n        print(1)\n",
            "    # a comment inside\n    if x:\n        print(1)\n",
        ),
        ("", ""),
        ("\ndef area(x):", ""),
    ],
)
def test_a_completion_ends_at_the_papers_stop_sequences(text: str, kept: str) -> None:
    assert cut_completion(text) == kept
    assert completed_program(PROMPT, text) == PROMPT + kept


def test_a_lone_fenced_block_is_the_code() -> None:
    assert found(f"Sure!\n\n```python\n{FUNCTION}\n```\nHope this helps.") == FUNCTION


@pytest.mark.parametrize("opening", ["```", "```py", "``` python", "```Python 3", "~~~python", "````", "```{.python}"])
def test_fences_are_written_in_many_ways(opening: str) -> None:
    closing = opening[: len(opening) - len(opening.lstrip("`~"))]
    assert found(f"{opening}\n{FUNCTION}\n{closing}\n") == FUNCTION


def test_a_fence_that_is_not_closed_goes_to_the_end() -> None:
    assert found(f"```python\n{FUNCTION}") == FUNCTION


def test_words_behind_an_unclosed_fence_are_left_out() -> None:
    assert found(f"```python\n{FUNCTION}\n\nThis function returns the area.") == FUNCTION


def test_a_reply_that_was_cut_loses_the_line_that_cannot_be_read() -> None:
    assert found(f"```python\n{FUNCTION}\n\ndef main():\n    print(area(") == FUNCTION


def test_of_several_blocks_the_last_that_defines_the_function_counts() -> None:
    reply = f"First try:\n```python\ndef area(r):\n    return 0\n```\nBetter:\n```python\n{FUNCTION}\n```\n"
    assert found(reply) == FUNCTION
    assert found(reply + "Use it:\n```python\nprint(area(2))\n```\n```text\n12.566\n```") == FUNCTION


def test_without_a_definition_the_last_block_of_python_counts() -> None:
    assert found("```\nx = 1\n```\n```python\nreturn math.pi\n```\n```bash\npython a.py\n```") == "return math.pi"


@pytest.mark.parametrize("marked", ["bash", "console", "text", "json", "output"])
def test_blocks_of_something_else_are_no_code(marked: str) -> None:
    assert found(f"```{marked}\nls\n```") == ""


def test_a_block_in_a_list_loses_its_margin() -> None:
    assert found(f"1. So:\n\n    ```python\n{textwrap.indent(FUNCTION, '    ')}\n    ```") == FUNCTION


def test_a_fence_inside_a_longer_fence_is_code() -> None:
    inside = 'def area(radius):\n    """\n```\nx\n```\n    """\n    return 1'
    assert found(f"````python\n{inside}\n````") == inside


def test_without_a_fence_the_code_begins_where_it_looks_like_code() -> None:
    reply = f"Here is the function you asked for:\n\nimport math\n\n{FUNCTION}\n\nIt squares the radius, as you see."
    assert found(reply) == f"import math\n\n{FUNCTION}"


def test_prose_that_starts_like_code_is_not_taken_for_it() -> None:
    reply = f"from the formula it is clear\nimporting nothing is needed\nclass of functions: simple\n{FUNCTION}"
    assert found(reply) == FUNCTION


def test_line_ends_of_other_systems_are_line_ends() -> None:
    for end in ("\r\n", "\r"):
        assert found(f"Hi\n```python\n{FUNCTION}\n```".replace("\n", end)) == FUNCTION


def test_an_interactive_session_loses_its_prompts_and_output() -> None:
    session = ">>> def area(radius):\n...     return math.pi * radius**2\n...\n>>> area(1)\n3.14159\n"
    assert found(f"```python\n{session}```") == f"{FUNCTION}\n\narea(1)"


def test_doctests_of_a_docstring_stay() -> None:
    function = 'def area(radius):\n    """\n    >>> area(0)\n    0.0\n    """\n    return 0.0'
    assert found(f"```python\n{function}\n```") == function


def test_a_main_block_stays_and_does_not_run() -> None:
    code = f"{FUNCTION}\n\nif __name__ == '__main__':\n    raise SystemExit(1)"
    program = replied_program(PROMPT, found(f"```python\n{code}\n```"), "area")
    namespace = {"__name__": "solution"}
    exec(program, namespace)
    assert namespace["area"](0) == 0  # type: ignore[operator]


@pytest.mark.parametrize("reply", ["", "  \n\t\n", "```python\n```", "```python\n\n```\n", "```text\nhi\n```"])
def test_nothing_is_no_code(reply: str) -> None:
    assert code_in_reply(reply, "area").strip() == ""


def test_code_that_nobody_can_read_is_left_to_fail() -> None:
    assert found("```python\ndef area(radius:\n    return 1\n```") == "def area(radius:\n    return 1"


@pytest.mark.parametrize("words", ["I cannot do that.", "the area, of course, is in area.py.", "Hm:\n- so\n- and so"])
def test_words_alone_are_no_code(words: str) -> None:
    assert found(words) == ""


def test_imports_and_helpers_of_the_prompt_stand_before_a_reply() -> None:
    program = replied_program(PROMPT, FUNCTION, "area")
    namespace: dict[str, object] = {}
    exec(program, namespace)
    assert namespace["area"](2) == pytest.approx(12.566, abs=1e-3)  # type: ignore[operator]
    assert namespace["half"](2) == 1  # type: ignore[operator]


@pytest.mark.parametrize(
    "body",
    [
        "    return math.pi * radius**2",
        "return math.pi * radius**2",
        "\treturn math.pi * radius**2",
        "square = radius**2\nreturn math.pi * square",
        "square = radius**2\n    return math.pi * square",
        "for _ in range(3):\n    pass\nreturn math.pi * radius**2",
        "\tfor _ in range(3):\n\t\tpass\n\treturn math.pi * radius**2",
        "    def squared(x):\n        return x**2\n\n    return math.pi * squared(radius)",
        "    if radius:\n        return math.pi * radius**2\n    return 0",
    ],
)
@pytest.mark.parametrize("fenced", [True, False])
def test_a_body_alone_is_joined_to_the_prompt(body: str, fenced: bool) -> None:
    code = code_in_reply(f"```python\n{body}\n```" if fenced else body, "area")
    namespace: dict[str, object] = {}
    exec(replied_program(PROMPT, code, "area"), namespace)
    assert namespace["area"](2) == pytest.approx(12.566, abs=1e-3)  # type: ignore[operator]


def test_a_function_of_another_name_is_not_renamed() -> None:
    program = replied_program(PROMPT, found("```python\ndef circle(radius):\n    return 1\n```"), "area")
    assert "def circle" in program and "def area" not in program


def test_a_lambda_and_an_async_function_are_definitions() -> None:
    for code in ("area = lambda radius: 0", "async def area(radius):\n    return 0"):
        assert found(f"```python\n{code}\n```\n```python\nprint(1)\n```") == code


def test_the_preamble_is_what_stands_before_the_function() -> None:
    assert preamble(PROMPT, "area") == PROMPT[: PROMPT.index("def area")]
    assert preamble(PROMPT, "half") == "import math\n\n\n"
    assert preamble("import x\n@x.cached\n@x.other(1)\ndef area():\n", "area") == "import x\n"
    with pytest.raises(ValueError, match="does not define area_of"):
        preamble(PROMPT, "area_of")


@pytest.mark.parametrize(
    "hostile", ["(" * 60_000, "-" * 60_000, "a" + ".a" * 30_000, "1" + "+1" * 30_000, "`" * 60_000, "\0", "def \ud800"]
)
def test_hostile_replies_are_only_text(hostile: str) -> None:
    for reply in (hostile, f"```python\n{hostile}\n```", f"```python\n{FUNCTION}\n{hostile}"):
        assert isinstance(replied_program(PROMPT, code_in_reply(reply, "area"), "area"), str)


@given(st.text(max_size=400))
def test_any_reply_gives_text(reply: str) -> None:
    code = code_in_reply(reply, "area")
    assert isinstance(replied_program(PROMPT, code, "area"), str)
    assert "\r" not in code


@given(st.text(alphabet="abc .,!\n", max_size=60), st.text(alphabet="abc .,!\n", max_size=60))
def test_words_around_a_fenced_function_change_nothing(before: str, after: str) -> None:
    code = found(f"{before}\n```python\n{FUNCTION}\n```\n{after}")
    assert code == FUNCTION and ast.parse(code)
