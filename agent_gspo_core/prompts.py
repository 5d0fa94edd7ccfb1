"""What an agent reads before it speaks, as chat messages.

Two styles: "compact" is the language that the tiny policy was warmed up on, "instruct" explains the game to a model
that has never seen it. Both put the question before the messages, so that a reader knows what it listens for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agent_gspo_core.episode import Problem

PromptStyle = Literal["compact", "instruct"]
ChatMessage = dict[str, str]
Heard = tuple[str, str]
"""Speaker's name and what it said."""

_ANSWER_FORM = {
    "number": "#### and the number, like this: 12 - 5 = 7 #### 7",
    "choice": "#### and the letter of the right option, like this: #### B",
    "text": "#### and the answer, like this: #### Paris",
    "latex": "#### and the answer in LaTeX, like this: #### \\frac{3}{4}",
    "code": "the whole function in one block that opens with ```python and closes with ```",
}


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
    """
    lines = [f"Note: {note}"] if note else []
    lines += [f"{speaker}: {said}" for speaker, said in heard]
    if style == "compact":
        return [
            {"role": "system", "content": name},
            {"role": "user", "content": "\n".join([render_question(problem), *lines])},
        ]
    duty = (
        f"Reply with one short line of working that ends in {_ANSWER_FORM[problem.kind]}"
        if answering
        else "Write one short message that helps your team to answer. Every word costs."
        + (f" If you have nothing to add, reply only {pass_word}." if pass_word else "")
    )
    system = " ".join(part for part in (f"You are {name}.", instruction, duty) if part)
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": "\n".join([f"Question: {render_question(problem)}", *lines])},
    ]
