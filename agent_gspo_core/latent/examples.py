"""What is learned from: a problem and what the last agent should say.

For the hidden profile the target is a worked answer in the form that the tiny policy knows ("Ben has 3, Ida has 6.
So 3 + 6 = 9. #### 9"): a policy of a million parameters does not add up without working (ours).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent_gspo_core.benchmarks.hidden_profile import HiddenProfileSettings, Split, draw_split, to_problem
from agent_gspo_core.episode import Problem
from agent_gspo_core.policy import Policy
from agent_gspo_core.prompts import ChatMessage
from agent_gspo_core.warm_start import say_answer

Target = Literal["worked", "brief", "bare"]
_FORMS: dict[Target, int] = {"worked": 1, "brief": 2, "bare": 3}  # of `warm_start.say_answer`


@dataclass(frozen=True)
class Example:
    """One supervised answer."""

    problem: Problem
    target: str
    """What the last agent should say, without special tokens."""

    def __post_init__(self) -> None:
        if not self.target.strip():
            raise ValueError(f"example {self.problem.id!r}: the target is empty; there is nothing to learn from it")


def hidden_profile_examples(
    split: Split,
    *,
    limit: int,
    seed: int = 0,
    settings: HiddenProfileSettings | None = None,
    target: Target = "worked",
) -> list[Example]:
    """The problems of `hidden_profile.load` with the same arguments, each with its target.

    Args:
        split: train, validation or test.
        limit: how many.
        seed: of the split.
        settings: what is generated.
        target: "worked" names owners and counts and adds up, "brief" names them, "bare" is the marked answer alone.
    """
    settings = settings or HiddenProfileSettings()
    if target not in _FORMS:
        raise ValueError(f"hidden-profile examples: unknown target {target!r}; choose {', '.join(_FORMS)}")
    if limit < 1:
        raise ValueError(f"hidden-profile examples: limit must be at least 1, got {limit}")
    everybody = frozenset(range(settings.agents))
    found = []
    for index in range(limit):
        facts = draw_split(split, index, seed, settings)
        problem = to_problem(facts, f"hidden_profile/{split}/{seed}/{index}")
        # Forms 1 to 3 of the recipe hold no chance; only its long form draws an opener.
        found.append(Example(problem, say_answer(_FORMS[target], facts, everybody, random.Random(0))))
    return found


def problem_examples(problems: Sequence[Problem]) -> list[Example]:
    """Benchmark problems, each with its bare answer in the form that an instruct model is asked for.

    Most benchmarks hold no worked solution that could be learned from, so none is used (ours; the traces that DiffMAS
    learned from are synthetic and not published).
    """
    return [
        Example(problem, f"```python\n{problem.answer.strip()}\n```" if problem.tests else f"#### {problem.answer}")
        for problem in problems
    ]


def encode_target(policy: Policy, chat: Sequence[ChatMessage], target: str) -> tuple[int, ...]:
    """Ids of a reply to `chat`, as the chat template writes it, up to and with its first end token."""
    opened = policy.tokenizer.apply_chat_template(list(chat), add_generation_prompt=True, tokenize=False)
    whole = policy.tokenizer.apply_chat_template(
        [*chat, {"role": "assistant", "content": target}], add_generation_prompt=False, tokenize=False
    )
    # Templates may rewrite what came before (verl#6854); then the reply is the bare target.
    reply = whole[len(opened) :] if whole.startswith(opened) else target
    ids = list(policy.tokenizer(reply, add_special_tokens=False)["input_ids"])
    for place, token in enumerate(ids):
        if token in policy.end_ids:
            return tuple(ids[: place + 1])
    end = policy.tokenizer.eos_token_id
    return (*ids, end if end in policy.end_ids else min(policy.end_ids))
