from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo_core.episode import CodeTests, Problem
from agent_gspo_core.scoring.code import extract_code

PROMPT = '''from typing import List
import math


def helper(x: int) -> int:
    return x + 1


def total(xs: List[int]) -> int:
    """ Sum of the numbers, each one up.
    >>> total([1, 2])
    5
    """
'''
TESTS = CodeTests("total", "assert total([1, 2]) == 5\nassert total([]) == 0\n", PROMPT)
PROBLEM = Problem(id="p", question="Write total.", answer="    return sum(map(helper, xs))", kind="code", tests=TESTS)

BODY = "    result = 0\n    for x in xs:\n        result += helper(x)\n    return result"
FUNCTION = "def total(xs: List[int]) -> int:\n" + BODY
FLAT = BODY.replace("\n    ", "\n")[4:]
FENCE = "```"


def indent(text: str, by: str = "    ") -> str:
    return "\n".join(by + line if line else line for line in text.split("\n"))


def prompted(text: str) -> str:
    return "\n".join(
        (">>> " if i == 0 or not line.startswith(" ") else "... ") + line for i, line in enumerate(text.split("\n"))
    )


RIGHT = {
    "function": FUNCTION,
    "function_and_newline": FUNCTION + "\n",
    "windows_lines": FUNCTION.replace("\n", "\r\n"),
    "tabs": FUNCTION.replace("    ", "\t"),
    "two_blanks": FUNCTION.replace("    ", "  "),
    "byte_order_mark": "\ufeff" + FUNCTION,
    "hard_blanks": FUNCTION.replace("    ", "\u00a0\u00a0\u00a0\u00a0"),
    "whole_prompt_repeated": PROMPT + BODY,
    "body": BODY,
    "body_without_first_indent": BODY.strip(),
    "body_flat": FLAT,
    "body_two_blanks": BODY.replace("    ", "  "),
    "body_tabs": BODY.replace("    ", "\t"),
    "body_then_next_function": BODY + "\n\n\ndef other(x):\n    return 1",
    "body_then_prose": BODY + "\n\nThis adds the numbers up.",
    "body_then_question": BODY + "\n\nQuestion: write another function\n\ndef foo(): return",
    "body_then_main": BODY + "\n\nif __name__ == '__main__':\n    import doctest\n    doctest.testmod()",
    "body_then_print": BODY + "\n\nprint(total([int(input())]))",
    "body_then_broken_function": BODY + "\n\ndef other(x:\n    retu",
    "one_line_body": "    return sum(helper(x) for x in xs)",
    "one_line_body_flat": "return sum(helper(x) for x in xs)",
    "fence": f"{FENCE}python\n{FUNCTION}\n{FENCE}",
    "fence_py": f"{FENCE}py\n{FUNCTION}\n{FENCE}",
    "fence_Python3": f"{FENCE}Python3\n{FUNCTION}\n{FENCE}",
    "fence_blank_language": f"{FENCE} python\n{FUNCTION}\n{FENCE}",
    "fence_attributes": f'{FENCE}python title="a.py"\n{FUNCTION}\n{FENCE}',
    "fence_braces": f"{FENCE}{{.python}}\n{FUNCTION}\n{FENCE}",
    "fence_no_language": f"{FENCE}\n{FUNCTION}\n{FENCE}",
    "fence_unclosed": f"Here:\n{FENCE}python\n{FUNCTION}",
    "fence_unclosed_cut": f"Here:\n{FENCE}python\n{FUNCTION}\n\ndef other(a, b",
    "fence_tildes": f"~~~python\n{FUNCTION}\n~~~",
    "fence_four": f"{FENCE}`python\n{FUNCTION}\n{FENCE}`",
    "fence_text_around": f"Sure! Here is it:\n\n{FENCE}python\n{FUNCTION}\n{FENCE}\n\nIt adds them up, don't worry.",
    "fence_in_list": f"1. First:\n\n   {FENCE}python\n{indent(FUNCTION, '   ')}\n   {FENCE}\n2. Done.",
    "fence_on_list_mark": f"- {FENCE}python\n{indent(FUNCTION, '  ')}\n  {FENCE}",
    "fence_in_quote": f"> {FENCE}python\n{indent(FUNCTION, '> ')}\n> {FENCE}",
    "fence_body": f"{FENCE}python\n{BODY}\n{FENCE}",
    "fence_body_flat": f"{FENCE}python\n{FLAT}\n{FENCE}",
    "fence_only_closed": f"{FUNCTION}\n{FENCE}\nThat is all.",
    "body_then_fence": f"{BODY}\n{FENCE}\nThat is all.",
    "two_blocks_last_right": f"{FENCE}python\ndef total(xs):\n    return 0\n{FENCE}\nWait:\n"
    f"{FENCE}python\n{FUNCTION}\n{FENCE}",
    "two_blocks_usage_last": f"{FENCE}python\n{FUNCTION}\n{FENCE}\nUsage:\n{FENCE}python\nprint(total([1]))\n{FENCE}",
    "two_blocks_output_last": f"{FENCE}python\n{FUNCTION}\n{FENCE}\n{FENCE}\n5\n{FENCE}",
    "two_blocks_shell_first": f"{FENCE}bash\npip install numpy\n{FENCE}\n{FENCE}python\n{FUNCTION}\n{FENCE}",
    "split_over_blocks": f"{FENCE}python\ndef add(a, b):\n    return a + b\n{FENCE}\nand\n{FENCE}python\n"
    f"def total(xs):\n    r = 0\n    for x in xs:\n        r = add(r, x + 1)\n    return r\n{FENCE}",
    "imports_in_own_block": f"{FENCE}python\nfrom functools import reduce\n{FENCE}\n{FENCE}python\ndef total(xs):\n"
    f"    return reduce(lambda a, b: a + b + 1, xs, 0)\n{FENCE}",
    "closing_fence_left_out": f"{FENCE}python\n{FUNCTION}\n\n{FENCE}python\nprint(total([1]))\n{FENCE}",
    "prose_before_def": f"The function walks the list.\n\n{FUNCTION}",
    "prose_around": f"Here's the solution:\n\n{FUNCTION}\n\nThis function doesn't use much memory.",
    "prose_before_import": f"Sure, it's easy:\nimport os\n{FUNCTION}",
    "prose_indented_code": f"The solution:\n\n{indent(FUNCTION)}\n\nEnd.",
    "main_guard": f"{FUNCTION}\n\nif __name__ == '__main__':\n    print(total([int(input())]))",
    "example_usage": f"{FUNCTION}\n\n# Example usage\nxs = [int(x) for x in input().split()]\nprint(total(xs))",
    "asserts_after": f"{FUNCTION}\n\nassert total([1]) == 3, 'wrong on purpose'",
    "doctest_after": f"{FUNCTION}\n\nimport doctest\ndoctest.testmod(raise_on_error=True)\ninput()",
    "next_question": f"{FUNCTION}\n\nWrite a function that multiplies.\n\ndef multiply(a, b):\n    return a * b",
    "next_prompt_cut": f'{FUNCTION}\n\n\ndef multiply(a, b):\n    """ Multiply\n    >>> mult',
    "im_end": f"{FUNCTION}<|im_end|>\n<|im_start|>user\nThanks",
    "eot": f"{FENCE}python\n{FUNCTION}\n{FENCE}<|eot_id|><|start_header_id|>",
    "endoftext": f"{BODY}\n<|endoftext|>import os",
    "marker_first": f"<|im_start|>assistant\n{FENCE}python\n{FUNCTION}\n{FENCE}",
    "inst": f"[/INST] {FENCE}python\n{FUNCTION}\n{FENCE}",
    "s_end": f"{FUNCTION}</s>",
    "thinking": f"<think>\nMaybe\n{FENCE}python\ndef total(xs):\n    return 1\n{FENCE}\n</think>\n"
    f"{FENCE}python\n{FUNCTION}\n{FENCE}",
    "transcript": prompted(FUNCTION),
    "transcript_with_output": prompted(FUNCTION) + "\n>>> total([1, 2])\n5",
    "transcript_in_fence": f"{FENCE}pycon\n{prompted(FUNCTION)}\n>>> total([])\n0\n{FENCE}",
    "notebook_sign": f"In [1]: {FUNCTION}",
    "lambda": "total = lambda xs: sum(x + 1 for x in xs)",
    "decorated": "import functools\n@functools.lru_cache(None)\ndef one(x):\n    return x + 1\n"
    + FUNCTION.replace("helper", "one"),
    "helper_after": FUNCTION.replace("helper", "later") + "\n\ndef later(x):\n    return x + 1",
    "constant_after": FUNCTION.replace("helper(x)", "x + ONE") + "\n\nONE = int('1')",
    "helper_changed": "def helper(x):\n    return x + 1\n\n" + FUNCTION,
    "future_import": "from __future__ import annotations\n" + FUNCTION.replace("helper(x)", "x + 1"),
    "nested_fence_in_docstring": f'{FENCE}python\ndef total(xs):\n    """Doc.\n\n    {FENCE}\n    total([1])\n'
    f'    {FENCE}\n    """\n'
    f"    return sum(x + 1 for x in xs)\n{FENCE}",
    "backtick_inline_before": f"The function `total` is:\n{FENCE}\n{FUNCTION}\n{FENCE}",
    "defined_twice": "def total(xs):\n    return 7\n\n" + FUNCTION,
    "class_around": "class Solution:\n    pass\n\n" + FUNCTION,
    "zero_width": "\u200b" + FUNCTION,
    "stub_then_continuation": f"{FENCE}python\n{PROMPT}{BODY}\n{FENCE}",
    "trailing_backticks_in_line": FUNCTION + FENCE,
}


@pytest.mark.parametrize("name", RIGHT)
def test_program_is_found(name: str) -> None:
    code = extract_code(RIGHT[name], PROBLEM)
    assert code is not None
    scope: dict[str, object] = {"__name__": "solution"}
    exec(code, scope)  # the replies are this file's own
    exec(TESTS.program, scope)


UNPARSED = {
    "empty": "",
    "blanks": " \n\t\n",
    "refusal": "I am sorry, but I cannot help with that.",
    "marker_only": "<|im_end|>",
    "fence_only": f"{FENCE}python\n{FENCE}",
    "fence_open_only": f"{FENCE}python",
    "other_function": "def average(xs):\n    return 0",
    "number": "#### 18",
    "broken": "def total(xs)\n    return",
    "only_called": "print(total([1, 2]))",
    "javascript": f"{FENCE}javascript\nfunction total(xs) {{ return 1; }}\n{FENCE}",
    "prompt_alone": PROMPT,
    "brackets": "(" * 100_000,
    "minus": "-" * 300_000 + "1",
    "nots": "not " * 100_000 + "1",
    "lambdas": "lambda: " * 50_000,
    "null_bytes": "\0" * 1000,
    "blank_megabyte": " " * 1_000_000,
    "fences": f"{FENCE}\n" * 50_000,
    "prompts": ">>> \n" * 100_000,
    "deep_blocks": "\n".join("    " * i + "if 1:" for i in range(400)),
    "quotes": '"""' * 100_000,
    "surrogates": "\udc80" * 1000,
}


@pytest.mark.parametrize("name", UNPARSED)
def test_reply_without_a_program_is_unparsed(name: str) -> None:
    assert extract_code(UNPARSED[name], PROBLEM) is None


def test_class_method_is_no_entry_point() -> None:
    assert extract_code("class Solution:\n    def total(self, xs):\n        return 0", PROBLEM) is None


def test_hostile_tail_does_not_hide_the_program() -> None:
    for tail in ("(" * 50_000, "x = " + "-" * 100_000 + "1", "\0" * 10, "'''" * 10_001, "if 1:\n" * 3_000, "é\udc80"):
        code = extract_code(FUNCTION + "\n\n" + tail, PROBLEM)
        assert code is not None, tail[:20]
        assert "result += helper(x)" in code


def test_nothing_is_executed() -> None:
    script = (
        "from agent_gspo_core.episode import *\nfrom agent_gspo_core.scoring.code import extract_code\n"
        "p = Problem('p', 'q', 'a', 'code', tests=CodeTests('f', 'f()', 'raise SystemExit(3)\\ndef f():\\n'))\n"
        "print(extract_code('raise SystemExit(4)\\ndef f():\\n    return 1', p) is not None)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "True\n"


def test_missing_imports_and_helpers_of_the_prompt_are_put_in_front() -> None:
    code = extract_code("def total(xs: List[int]) -> int:\n    return sum(helper(x) for x in xs)", PROBLEM)
    assert code is not None
    assert code.startswith("from typing import List\nimport math\ndef helper(x: int) -> int:\n    return x + 1\n")


def test_prompt_that_is_repeated_is_not_doubled() -> None:
    code = extract_code(PROMPT + BODY, PROBLEM)
    assert code is not None
    assert code.count("import math") == code.count("def helper") == code.count("def total") == 1


def test_kind_without_tests_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'p'.*'number'.*no tests"):
        extract_code("x", Problem(id="p", question="q", answer="1"))


@given(st.text(alphabet=st.sampled_from(list("`~> \n\t:()def total(xs)return1\"'\\#@=[]{},.-")), max_size=300))
def test_any_text_gives_a_program_that_compiles_and_defines_the_function_or_none(text: str) -> None:
    code = extract_code(text, PROBLEM)
    if code is not None:
        names = {s.name for s in ast.walk(ast.parse(code)) if isinstance(s, ast.FunctionDef)}
        names |= {n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)}
        assert "total" in names


@given(st.text(max_size=80), st.sampled_from([FUNCTION, PROMPT + BODY]), st.text(max_size=80))
def test_text_around_a_fence_changes_nothing(before: str, program: str, after: str) -> None:
    before, after = (
        text.replace("`", "").replace("~", "").replace("<", "").replace("[", "") for text in (before, after)
    )
    code = extract_code(f"{before}\n{FENCE}python\n{program}\n{FENCE}\n{after}", PROBLEM)
    assert code is not None
    assert "result += helper(x)" in code
