"""Read the program from a model's reply. Nothing is executed here.

Candidates, best first: the fenced blocks (the last one that defines the entry point, else all of them together), then
the reply without fences. Each is tried as it stands, as a continuation of the task's prompt, and with the tail cut off
where it stops being Python. What is returned compiles and defines the entry point.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from agent_gspo_core.episode import CodeTests, Problem

_LONGEST = 100_000
"""Characters of a reply that are looked at; a program for one function is a hundredth of that."""
_DEEPEST = 150
"""Open brackets: far beyond it, parsing may end the interpreter instead of raising."""
_TRIALS = 60
"""Times that one candidate is parsed while its tail is cut off."""
_MOST_BLOCKS = 30

_FENCE = re.compile(r"^[ \t]*(?:>[ \t]?)*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?(`{3,}|~{3,})[ \t]*([^`\n]{0,80})$")
_MARKER = re.compile(
    r"<\|?(?:im_end|im_start|endoftext|eot_id|end_of_text|end_of_turn|start_of_turn|end|eos|assistant|user)\|?>"
    r"|</?s>|<｜[^｜\n]{1,40}｜>|\[/?INST\]"
)
_THOUGHT = re.compile(r"</(?:think|thinking|reasoning)>", re.I)
_PROMPT_SIGN = re.compile(r"^[ \t]*(?:>>>|\.\.\.)(?: |$)")
_NUMBERED = re.compile(r"^[ \t]*(?:In|Out) ?\[\d*\]: ?", re.M)
_FENCE_AT_END = re.compile(r"(?<=[^\s`])(`{3,})[ \t]*$", re.M)
# fmt: off
_OTHER_LANGUAGES = frozenset({
    "bash", "sh", "shell", "zsh", "console", "output", "text", "plaintext", "json", "yaml", "sql", "html", "css",
    "c", "cpp", "c++", "java", "javascript", "js", "ts", "typescript", "go", "rust",
})
# fmt: on
_BEGINS = re.compile(r"^(?:async\s+def|def|class|import|from|@)\b|^@")


def extract_code(reply: str, problem: Problem) -> str | None:
    """The Python source with which `reply` answers `problem` (kind "code"); `None` if there is none (unparsed).

    Raises `ValueError` if the problem is of another kind.
    """
    if problem.tests is None:
        raise ValueError(f"problem {problem.id!r}: kind {problem.kind!r} has no tests; extract_code is for kind 'code'")
    search = _Search(problem.tests)
    reply = _own_part(reply)
    blocks = [text for language, text in _blocks(reply) if language not in _OTHER_LANGUAGES and text.strip()]
    blocks = blocks[-_MOST_BLOCKS:]
    for text in reversed(blocks):
        found = _complete(text, search)
        if found is not None:
            return _with_other_blocks(found, [block for block in blocks if block is not text], search)
    if len(blocks) > 1:
        found = _complete("\n".join(blocks), search)
        if found is not None:
            return found
    for text in reversed(blocks):
        found = _continued(text, search)
        if found is not None:
            return found
    lines = reply.split("\n")
    fences = [i for i, line in enumerate(lines) if _FENCE.match(line)]
    before = "\n".join(lines[: fences[0]]) if fences else reply
    bare = "\n".join(line for line in lines if not _FENCE.match(line)) if fences else reply
    for text in dict.fromkeys((before, bare)):
        found = _complete(text, search) or _within(text, search)
        if found is not None:
            return found
    return _continued(before, search)


@dataclass
class _Search:
    """What is looked for, and how much may still be parsed: a hostile reply must not cost minutes."""

    tests: CodeTests
    left: int = 3_000_000
    """Characters."""


def _own_part(reply: str) -> str:
    """The reply before it plays another speaker, after its thinking; line ends and odd blanks made plain."""
    reply = reply[:_LONGEST].replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "").lstrip("\ufeff")
    reply = reply.replace("\u00a0", " ").replace("\u200b", "")
    thoughts = list(_THOUGHT.finditer(reply))
    if thoughts and reply[thoughts[-1].end() :].strip():
        reply = reply[thoughts[-1].end() :]
    parts = _MARKER.split(reply)
    own = next((part for part in parts if len(part.split()) > 1), "").strip("\n")
    return _FENCE_AT_END.sub(r"\n\1", own)


def _blocks(reply: str) -> list[tuple[str, str]]:
    """The fenced blocks as (language, text), an unclosed last one included."""
    blocks: list[tuple[str, str]] = []
    fence, language, lines = "", "", list[str]()
    for line in reply.split("\n"):
        mark = _FENCE.match(line)
        if not fence:
            if mark:
                fence, language, lines = mark[1], (mark[2].split() or [""])[0].strip("{}.").lower(), []
        elif mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not mark[2].strip():
            blocks.append((language, "\n".join(lines)))
            fence = ""
        elif mark and mark[1][0] == fence[0] and mark[2].strip() and not _inside_string("\n".join(lines)):
            blocks.append((language, "\n".join(lines)))  # the closing fence was left out
            language, lines = mark[2].split()[0].strip("{}.").lower(), []
        else:
            lines.append(line)
    if fence:
        blocks.append((language, "\n".join(lines)))
    return blocks


def _inside_string(text: str) -> bool:
    return text.count('"""') % 2 == 1 or text.count("'''") % 2 == 1


# --- candidates -----------------------------------------------------------------------------------------------------


def _complete(text: str, search: _Search) -> str | None:
    """`text` as a program that defines the entry point by itself, its run-on cut off and missing imports added."""
    for variant in _variants(text):
        kept = _longest_prefix(variant, search)
        if kept is not None:
            return _with_prompt_head(_trimmed(kept, search), search)
    return None


def _continued(text: str, search: _Search) -> str | None:
    """`text` as the body that the prompt waits for; of the ways to indent it, the one that keeps most."""
    prompt, name = search.tests.prompt, search.tests.entry_point
    if not _defines(prompt, name, search) and not _defines(prompt.rstrip() + "\n    pass", name, search):
        return None
    header = prompt if prompt.endswith("\n") else prompt.rstrip(" \t") + "\n"
    least = header.count("\n") + 1
    wholes = [_longest_prefix(header + body, search, least) for body in _bodies(text)]
    kept = [whole for whole in wholes if whole is not None and _has_body(whole, search)]
    return _trimmed(max(kept, key=lambda whole: whole.count("\n")), search) if kept else None


def _with_other_blocks(found: str, others: list[str], search: _Search) -> str:
    """`found` with those other blocks in front that bind a name which it reads and nothing binds."""
    trees = {text: tree for text in others if isinstance(tree := _parse(textwrap.dedent(text), search), ast.Module)}
    front: list[str] = []
    for _ in others:
        tree = _parse("\n".join([*front, found]), search)
        missing = _missing(tree) if isinstance(tree, ast.Module) else set()
        more = [text for text, other in trees.items() if text not in front and missing & _bound(other)]
        if not more:
            break
        front.insert(0, more[-1])
    joined = [_trimmed(textwrap.dedent(text), search) for text in front] + [found]
    whole = "\n".join(joined)
    return whole if front and _defines(whole, search.tests.entry_point, search) else found


def _variants(text: str) -> Iterator[str]:
    plain = textwrap.dedent(text.expandtabs(4)) if re.search(r"^\t* +\t|^ +\S", text, re.M) else textwrap.dedent(text)
    yield plain
    quoted = re.sub(r"^[ \t]*> ?", "", plain, flags=re.M)
    if quoted != plain:
        yield textwrap.dedent(quoted)
    lines = plain.split("\n")
    if any(_PROMPT_SIGN.match(line) or _NUMBERED.match(line) for line in lines):
        said = [_PROMPT_SIGN.sub("", line) for line in lines if _PROMPT_SIGN.match(line)]
        yield textwrap.dedent("\n".join(said))
        yield _NUMBERED.sub("", plain)
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    indented = [line for line in lines[first + 1 :] if line.strip()]
    if indented and not lines[first].startswith(" ") and all(line.startswith(" ") for line in indented[:1]):
        return
    # The first line lost its indentation (a reply is often stripped): give it that of the others.
    least = min((len(line) - len(line.lstrip(" ")) for line in indented), default=0)
    if least:
        yield textwrap.dedent("\n".join([*lines[:first], " " * least + lines[first], *lines[first + 1 :]]))


def _bodies(text: str) -> Iterator[str]:
    """`text` indented as a function body: as it is, then moved to four blanks, then with its first line mended."""
    text = text.strip("\n").expandtabs(4)
    yield text
    dedented = textwrap.dedent(text)
    yield textwrap.indent(dedented, "    ")
    head, _, rest = text.partition("\n")
    if rest and not head.startswith(" "):
        indented = [line for line in rest.split("\n") if line.strip()]
        least = min((len(line) - len(line.lstrip(" ")) for line in indented if line.startswith(" ")), default=4)
        yield " " * min(least, 4) + head + "\n" + rest


def _within(text: str, search: _Search) -> str | None:
    """The program in a reply that wraps it in prose without a fence: from a line that begins code as far as it goes."""
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if _BEGINS.match(line.lstrip())]
    defines = re.compile(rf"\s*(?:async\s+)?def\s+{re.escape(search.tests.entry_point)}\b")
    direct = [i for i in starts if defines.match(lines[i]) and not _in_class(lines, i)]
    for start in [*starts[:10], *reversed(direct[-5:])]:
        depth = _indent(lines[start])
        end = next((i for i in range(start, len(lines)) if lines[i].strip() and _indent(lines[i]) < depth), len(lines))
        found = _complete("\n".join(lines[start:end]), search)
        if found is not None and not _in_class(lines, start):
            return found
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _in_class(lines: list[str], index: int) -> bool:
    """Whether the line is deeper than a class statement above it, with nothing as shallow as that in between."""
    depth = _indent(lines[index])
    for line in reversed(lines[max(0, index - 500) : index]):
        if line.strip() and _indent(line) < depth:
            depth = _indent(line)
            if line.lstrip().startswith("class "):
                return True
    return False


# --- syntax ---------------------------------------------------------------------------------------------------------


def _parse(source: str, search: _Search) -> ast.Module | SyntaxError | None:
    """The tree; the error, if it tells where; `None` for anything else that is no program."""
    search.left -= len(source)
    if search.left < 0 or _too_deep(source):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the reply are not ours to report
            tree = ast.parse(source)
            compile(tree, "<reply>", "exec", dont_inherit=True)  # finds what the grammar alone lets pass
            return tree
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return None


def _too_deep(source: str) -> bool:
    """Whether brackets or runs of operators nest so deeply that parsing is not safe. Strings are not skipped."""
    depth = 0
    for bracket in re.finditer(r"[()\[\]{}]", source):
        depth = depth + 1 if bracket[0] in "([{" else max(0, depth - 1)
        if depth > _DEEPEST:
            return True
    return _OPERATOR_RUN.search(source) is not None


_OPERATOR_RUN = re.compile(r"(?:[-+~][ \t]*+){150}|(?:\bnot[ \t]++){150}|(?:\blambda[ \t]*+:[ \t]*+){90}")


def _defines(source: str, name: str, search: _Search) -> bool:
    tree = _parse(source, search)
    return isinstance(tree, ast.Module) and name in _bound(tree, functions=True)


def _bound(tree: ast.Module, *, functions: bool = False) -> set[str]:
    """What the module's statements bind; imports too unless only `functions` and the like are asked for."""
    names: set[str] = set()
    for statement in tree.body:
        names |= _names(statement)
        if not functions and isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    return names


def _names(statement: ast.stmt) -> set[str]:
    """What a statement at module level binds, as far as it can be an entry point or a helper."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and statement.value is not None and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    if isinstance(statement, (ast.If, ast.Try)):
        return set().union(*map(_names, statement.body))
    return set()


def _reads(*statements: ast.stmt) -> set[str]:
    """Names that each statement reads and does not bind within itself."""
    read: set[str] = set()
    for statement in statements:
        loads: set[str] = set()
        binds: set[str] = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                (loads if isinstance(node.ctx, ast.Load) else binds).add(node.id)
            elif isinstance(node, ast.arg):
                binds.add(node.arg)
            elif isinstance(node, ast.alias):
                binds.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node is not statement:
                binds.add(node.name)
        read |= loads - binds
    return read


def _missing(tree: ast.Module) -> set[str]:
    return {name for name in _reads(*tree.body) - _bound(tree) if not hasattr(builtins, name)}


def _longest_prefix(source: str, search: _Search, least: int = 1) -> str | None:
    """The longest run of lines from the top that is a program and defines the entry point; `None` without one.

    Parsing fails at or after the line that stops being Python, so the cut goes there first, then upwards.
    """
    lines = source.split("\n")
    end = len(lines)
    for _ in range(_TRIALS):
        if end < least:
            return None
        tried = "\n".join(lines[:end])
        tree = _parse(tried, search)
        if isinstance(tree, ast.Module):
            return tried if _is_written(tree, search.tests.entry_point) else None
        if isinstance(tree, SyntaxError) and tree.lineno is not None and 0 < tree.lineno <= end:
            # A string or bracket left open is reported where it opened: everything from there on is cut.
            end = min(end - 1, tree.lineno - 1)
        else:
            end = min(end - 1, end * 3 // 4)
        while end > 0 and not lines[end - 1].strip():
            end -= 1
    return None


def _is_written(tree: ast.Module, name: str) -> bool:
    """Whether the module binds `name` to more than a stub (a docstring, `pass`, `...`)."""
    for statement in reversed(tree.body):
        if name in _names(statement):
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return True
            return not all(
                isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
                for s in statement.body
            )
    return False


def _has_body(source: str, search: _Search) -> bool:
    """Whether the last definition of the entry point gives something back: a docstring or a stray word does not."""
    tree = _parse(source, search)
    if not isinstance(tree, ast.Module):
        return False
    name = search.tests.entry_point
    found = [s for s in tree.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)) and s.name == name]
    pending: list[ast.AST] = list(found[-1].body) if found else []
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Raise)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return False


_RUN_ON = (ast.Expr, ast.Assert, ast.For, ast.AsyncFor, ast.While, ast.With, ast.Delete, ast.Raise)


def _trimmed(source: str, search: _Search) -> str:
    """`source` without what a reply runs on with: examples, prints, `if __name__`, a demonstration's variables.

    Definitions and imports stay, and assignments whose names the rest reads. Before the entry point nothing goes but
    `if __name__`.
    """
    tree = _parse(source, search)
    if not isinstance(tree, ast.Module):
        return source
    name = search.tests.entry_point
    last = max((i for i, statement in enumerate(tree.body) if name in _names(statement)), default=len(tree.body))
    cut = [s for i, s in enumerate(tree.body) if _is_main_guard(s) or (i > last and isinstance(s, _RUN_ON))]
    kept = [s for s in tree.body if s not in cut]
    read = _reads(*(s for s in kept if not isinstance(s, ast.Assign)))
    for statement in reversed(kept):
        if isinstance(statement, ast.Assign) and statement in tree.body[last + 1 :] and not _names(statement) & read:
            cut.append(statement)
        elif isinstance(statement, ast.Assign):
            read |= _reads(statement)
    lines = source.split("\n")
    shared = [0] * (len(lines) + 2)  # statements that touch a line: `a = 1; print(a)` stays whole
    for statement in tree.body:
        for number in range(_first_line(statement), (statement.end_lineno or statement.lineno) + 1):
            shared[number] += 1
    for statement in sorted(cut, key=lambda s: -s.lineno):
        first, final = _first_line(statement), statement.end_lineno or statement.lineno
        if max(shared[first : final + 1]) == 1:
            del lines[first - 1 : final]
    kept_source = "\n".join(lines).strip("\n") + "\n"
    return kept_source if isinstance(_parse(kept_source, search), ast.Module) else source


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _with_prompt_head(source: str, search: _Search) -> str:
    """`source` with what the prompt provides and the source leaves out: its imports and its helpers."""
    text = search.tests.prompt
    prompt = _parse(text, search)
    if not isinstance(prompt, ast.Module):
        prompt = _parse(text.rstrip() + "\n    pass", search)
    tree = _parse(source, search)
    if not isinstance(prompt, ast.Module) or not isinstance(tree, ast.Module):
        return source
    bound = _bound(tree)
    present = {ast.dump(s) for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))}
    head = []
    for statement in prompt.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            missing = ast.dump(statement) not in present
        else:
            names = _names(statement)
            missing = bool(names) and search.tests.entry_point not in names and not names & bound
        if missing:
            head.append(ast.get_source_segment(text, statement) or ast.unparse(statement))
    if not head:
        return source
    joined = "\n".join(head) + "\n\n" + source
    return joined if _defines(joined, search.tests.entry_point, search) else source
