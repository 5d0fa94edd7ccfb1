"""What an agent reads before it speaks, as chat messages.

Two styles: "compact" is the language that the tiny policy was warmed up on, "instruct" explains the game to a model
that has never seen it. Both put the question before the messages, so that a reader knows what it listens for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agent_gspo_core.episode import AnswerKind, Problem

PromptStyle = Literal["compact", "instruct"]
Working = Literal["none", "brief", "steps"]
ChatMessage = dict[str, str]
Heard = tuple[str, str]
"""Speaker's name and what it said."""

_MARK = {
    "number": ("#### and the number", "#### 7"),
    "choice": ("#### and the letter of the right option", "#### B"),
    "text": ("#### and the answer", "#### Paris"),
    "latex": ("#### and the answer in LaTeX", r"#### \frac{3}{4}"),
}
_EXAMPLE = {"number": "12 - 5 = 7 #### 7"}
"""What a brief reply with its working looks like, where one is shown."""
_CODE = "the whole function, its imports included, in one block that opens with ```python and closes with ```"


def answer_duty(kind: AnswerKind, working: Working) -> str:
    """What an instruct model is told about the form of its answer."""
    if kind == "code":
        return {
            "none": f"Reply only with {_CODE}.",
            "brief": f"Reply with {_CODE}.",
            "steps": f"Think step by step, then give {_CODE}.",
        }[working]
    mark, example = _MARK[kind]
    if working == "brief":
        return f"Reply with one short line of working that ends in {mark}, like this: {_EXAMPLE.get(kind, example)}"
    start = "Reply only with" if working == "none" else "Think step by step. End with a last line that holds only"
    return f"{start} {mark}, like this: {example}"


def render_question(problem: Problem) -> str:
    """The question with its lettered options, if it has any: "… (A) 7 (B) 9"."""
    options = "".join(f" ({chr(ord('A') + i)}) {text}" for i, text in enumerate(problem.choices))
    return problem.question + options


def build_chat(
    problem: Problem,
    *,
    style: PromptStyle,
    name: str,
    heard: Sequence[Heard],
    note: str | None = None,
    answering: bool = False,
    instruction: str = "",
    pass_word: str = "",
    working: Working = "brief",
) -> list[ChatMessage]:
    """Chat messages for one turn of one agent.

    Args:
        problem: what is asked.
        style: see the module's docstring.
        name: the speaker's own name ("Agent 1", "Judge").
        heard: what it has heard, oldest first.
        note: its private note, if it has one.
        answering: whether this turn must end in an answer.
        instruction: the role's own instruction (instruct style only).
        pass_word: word that counts as silence; named to instruct models only.
        working: how much of it an answer shows (instruct style only): none, one short line, or step by step.
    """
    lines = [f"Note: {note}"] if note else []
    lines += [f"{speaker}: {said}" for speaker, said in heard]
    if style == "compact":
        return [
            {"role": "system", "content": name},
            {"role": "user", "content": "\n".join([render_question(problem), *lines])},
        ]
    if answering:
        duty = answer_duty(problem.kind, working)
    else:
        duty = "Write one short message that helps your team to answer. Every word costs."
        duty += f" If you have nothing to add, reply only {pass_word}." if pass_word else ""
    system = " ".join(part for part in (f"You are {name}.", instruction, duty) if part)
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": "\n".join([f"Question: {render_question(problem)}", *lines])},
    ]
