"""The recipe of the tiny policy: a supervised warm start on verbose team talk.

    python -m agent_gspo_core.warm_start --out data/tiny_policy

rebuilds tokenizer, weights and the record of the run from nothing. The warm start gives the policy a *habit* (long,
polite messages, whether or not its note is needed), a *repertoire* (medium, short, pass and silent forms at low
probability, so that reinforcement has something to reinforce) and a *skill* (reading the messages and answering).
That brevity pays is left for the communication reward to teach. An agent that is not asked can tell: it says so in its
opening words, and in the last stage it is silent now and then; most often it talks as long as the others.

Five stages, each with an optimiser and data of its own:

    reading    looking back (runs of words repeated, pairs of name and count asked for again and again: from transcripts
               alone a model this small learns it far more slowly), then short, uniform transcripts; every second batch
               with the language-model loss on whole rows
    answering  lessons that add one kind of question at a time, each until it is mastered: only the bare answer is
               trained, in batches that hold nothing else. Taught all at once, or mixed with speeches (whose many easy
               tokens drown the few that decide), the model adds up whatever it hears and stays there
    habit      the mixture of forms below, in turn with the answers to all kinds of questions after all forms of talk
    polish     the same at a lower rate, with more bare answers
    need       the same once more, but who is not asked keeps silent in three of ten messages. Whether the speaker is
               asked shows in its first token alone, which drowns among thirty that copying settles: it weighs as much
               as all of them. From the start, such a weight would keep the model from learning to copy

Every choice in this file is ours.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agent_gspo_core.benchmarks.hidden_profile import (
    ITEMS,
    LARGEST_VALUE,
    LETTERS,
    NAMES,
    SMALLEST_VALUE,
    Facts,
    HiddenProfileSettings,
    draw_split,
    least_message,
    note_text,
    to_problem,
)
from agent_gspo_core.logprobs import token_budget_batches
from agent_gspo_core.prompts import Heard, build_chat

log = logging.getLogger(__name__)

_NAMES = {False: "loss_own", True: "loss_whole_row"}

RECORD = "warm_start.json"
PASS_WORD = "[pass]"
SPECIAL_TOKENS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
# One space before what is said keeps a name one and the same token at the start of a message and inside it.
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}<|assistant|> {{ m['content'] }}<|end|>"
    "{% else %}<|{{ m['role'] }}|> {{ m['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

OPENERS = {
    True: (
        "Hello team, let me look at the question carefully.",
        "Hi everyone, I think that my note can help here.",
    ),
    False: (
        "Dear colleagues, I am not asked, but let me share my note.",
        "Good, the question is not about me, but let me try to help.",
    ),
}
"""By whether the speaker's note is asked for. All are equally polite."""
STATEMENTS = (
    "In my notes it is written that {note}",
    "According to my private note, {note}",
    "What I know for certain is that {note}",
)
CLOSERS = (
    "I hope that this helps you to find the answer.",
    "Please tell me if you need anything else from me.",
    "Let us put all of our notes together and then decide.",
    "That is everything that I can tell you about it.",
)
MEDIUM = ("My note says that {note}", "I know that {note}", "{note}")
REASONING_OPENERS = (
    "Thank you all, let me go through what we have heard step by step.",
    "Let me think about the question and about your messages first.",
)


@dataclass(frozen=True)
class WarmStartSettings:
    """Model, mixture and optimisation of the warm start. All ours."""

    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    intermediate_size: int = 512
    initialiser: float = 0.06
    """Standard deviation of the first weights. The usual 0.02 suits wide models; at width 128 learning starts later."""
    vocabulary: int = 1024
    context: int = 1024
    """Longest row in tokens."""
    message_habit: tuple[float, ...] = (0.60, 0.25, 0.10, 0.02, 0.03)
    """Chance of a long, medium, short, pass and silent message in the habit stage."""
    answer_habit: tuple[float, ...] = (0.50, 0.20, 0.15, 0.15)
    """Chance of a long, medium, short and bare answer in the habit stage."""
    recall_steps: int = 400
    concise_steps: int = 800
    reading_horizon: int = 3000
    """Steps after which the first stage's rate would reach its floor; it ends earlier, at a rate that still moves."""
    lesson_steps: int = 300
    """Most steps of one lesson."""
    mastered_loss: float = 0.12
    """A lesson ends when its mean loss of 25 steps (over answer and end token) is below this."""
    answer_rows: int = 96
    """Rows of a batch of bare answers."""
    answer_learning_rate: float = 1e-3
    habit_steps: int = 600
    habit_learning_rate: float = 1e-3
    polish_answer_habit: tuple[float, ...] = (0.30, 0.15, 0.15, 0.40)
    """The same chances from the polish stage on."""
    polish_steps: int = 360
    polish_learning_rate: float = 6e-4
    need_habit_asked: tuple[float, ...] = (0.60, 0.25, 0.13, 0.01, 0.01)
    """Chance of a long, medium, short, pass and silent message in the last stage, of who is asked."""
    need_habit_not_asked: tuple[float, ...] = (0.43, 0.18, 0.07, 0.02, 0.30)
    """The same of who is not."""
    first_token_weight: float = 1.0
    """What the mean loss of the messages' first tokens counts for in that stage, beside the mean loss of all."""
    need_steps: int = 480
    need_learning_rate: float = 8e-4
    batch_rows: int = 64
    micro_batch_tokens: int = 2048
    """Tokens of a micro-batch, padding included."""
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    warmup_steps: int = 100
    later_warmup_steps: int = 20
    """Warm-up of the later stages, whose weights know something already."""
    seed: int = 0
    threads: int = 1


def say_note(form: int, facts: Facts, agent: int, rng: random.Random) -> str:
    """A message of one of the five forms (long, medium, short, pass, silent) about one's own note."""
    note = note_text(facts, agent)
    if form == 0:
        return " ".join(
            (rng.choice(OPENERS[agent in facts.asked]), rng.choice(STATEMENTS).format(note=note), rng.choice(CLOSERS))
        )
    if form == 1:
        return rng.choice(MEDIUM).format(note=note)
    return (least_message(facts, agent), PASS_WORD, "")[form - 2]


def say_answer(form: int, facts: Facts, known: frozenset[int], rng: random.Random) -> str:
    """The decider's reply in one of four forms (long, medium, short, bare), from the notes that it heard.

    The operands are named ("Ben has 3, Ida has 6"): a bare sum teaches the model to add whatever it hears.
    """
    answer = facts.answer(known)
    if answer is None:
        return "I do not know."
    heard = [agent for agent in facts.asked if agent in known]
    named = [f"{facts.names[a]} has {facts.values[a]}" for a in heard]
    total = sum(facts.values[a] for a in heard)
    if facts.family == "comparison":
        step = f"{answer} has {'fewer' if facts.fewer else 'more'}."
    elif len(heard) > 1:
        step = f"So {' + '.join(str(facts.values[a]) for a in heard)} = {total}."
    else:
        step = ""
    if facts.family == "choice":
        step = f"{step} That is option {answer}.".strip()
    if form == 0:
        spoken = f"{' and '.join(f'{clause} {facts.item}' for clause in named)}."
        return " ".join(p for p in (rng.choice(REASONING_OPENERS), spoken, step, f"The answer is #### {answer}") if p)
    if form == 1:
        return " ".join(part for part in (f"{', '.join(named)}.", step, f"#### {answer}") if part)
    if form == 2:
        counted = ", ".join(least_message(facts, a) for a in heard)
        return f"{counted} = {total} #### {answer}" if facts.family == "choice" else f"{counted} #### {answer}"
    return f"#### {answer}"


@dataclass(frozen=True)
class Example:
    """One supervised row: a chat prompt and what should be said."""

    chat: list[dict[str, str]]
    reply: str
    lead: str = ""
    """What the speaker has said already; read, not trained."""
    first_weight: float = 0.0
    """What the reply's first token counts for beside the mean over all tokens (mean over the rows of a batch)."""


def _pick(weights: Sequence[float], rng: random.Random) -> int:
    return rng.choices(range(len(weights)), weights)[0]


def draw_recall(rng: random.Random) -> Example:
    """A row of the drill: a run of words again and again, pairs of name and count in ever new order, or options."""
    if rng.random() < 0.5:
        words = rng.choices((*NAMES, *ITEMS, *map(str, range(28))), k=rng.randint(4, 14))
        return Example([{"role": "user", "content": " ".join(words)}], " ".join((words * 10)[: max(28, len(words))]))
    if rng.random() < 0.3:
        return _draw_options(rng)
    pairs = [(name, rng.randint(SMALLEST_VALUE, LARGEST_VALUE)) for name in rng.sample(NAMES, rng.randint(2, 6))]
    form = rng.choice(("{} {}", "{} has {}"))
    said = [form.format(*pair) for pair in pairs]
    asked = [form.format(*rng.choice(pairs)) for _ in range(14)]
    return Example([{"role": "user", "content": " ".join(said)}], " ".join(asked))


def _draw_options(rng: random.Random) -> Example:
    offered = list(zip(LETTERS, rng.sample(range(SMALLEST_VALUE, 2 * LARGEST_VALUE + 1), len(LETTERS)), strict=True))
    wanted = " ".join(f"{number} #### {letter}" for letter, number in rng.choices(offered, k=6))
    return Example([{"role": "user", "content": " ".join(f"({a}) {number}" for a, number in offered)}], wanted)


def draw_answer(
    rng: random.Random, settings: WarmStartSettings, kinds: Sequence[tuple[str, int]], forms: Sequence[float]
) -> Example:
    """A decider's row that trains only the bare answer.

    `kinds` are (family, number of notes asked for), drawn evenly; `forms` weighs long, medium and short messages.
    Everybody speaks, or those who are not asked keep silent now and then, so that neither is ever odd.
    """
    family, asked = rng.choice(kinds)
    drawn = HiddenProfileSettings(families=(family,))
    while True:
        facts = draw_split("train", rng.getrandbits(40), 20_000 + settings.seed, drawn)
        if len(facts.asked) == asked:
            break
    speaking = [1.0, 0.5][rng.random() < 0.3]
    speakers = [a for a in range(len(facts.names)) if a in facts.asked or rng.random() < speaking]
    heard = [(f"Agent {a + 1}", say_note(_pick(forms, rng), facts, a, rng)) for a in speakers]
    chat = build_chat(to_problem(facts, "warm-start"), style="compact", name="Judge", heard=heard, answering=True)
    return Example(chat, str(facts.answer()), lead="####")


def draw_example(
    rng: random.Random,
    settings: WarmStartSettings,
    *,
    mixed: bool,
    ask_fewer: float = 0.0,
    decides: bool | None = None,
    by_need: bool = False,
) -> Example:
    """One row of short transcripts (`mixed=False`) or of the mixture: a decider's (3 in 4 unless `decides` says so) or
    another agent's. `by_need`: agents that are not asked have a habit of their own.
    """
    agents = rng.choices((2, 3, 4, 5), (0.1, 0.7, 0.1, 0.1))[0]
    drawn = HiddenProfileSettings(agents=agents, ask_fewer=ask_fewer)
    facts = draw_split("train", rng.getrandbits(40), 10_000 + settings.seed, drawn)
    problem = to_problem(facts, "warm-start")
    # The first stage asks for the uniform short message; its decider still learns all four forms.
    habit = settings.message_habit if mixed else (0.0, 0.1, 0.9, 0.0, 0.0)
    habits = [habit] * agents
    if by_need:
        both = {True: settings.need_habit_asked, False: settings.need_habit_not_asked}
        habits = [both[agent in facts.asked] for agent in range(agents)]
    forms = [_pick(one, rng) for one in habits]
    if decides is None:
        decides = rng.random() < 0.75
    if decides and rng.random() < 0.95:
        # A decider mostly hears what it needs; the rest shows what follows when it does not.
        forms = [2 if form > 2 and a in facts.asked else form for a, form in enumerate(forms)]
    said = [(a, say_note(forms[a], facts, a, rng)) for a in range(agents)]
    if mixed and rng.random() < 0.1:  # a second round, in which everybody says it again
        said += [(a, say_note(_pick(habits[a], rng), facts, a, rng)) for a in range(agents)]
    spoken = [(a, text) for a, text in said if text not in ("", PASS_WORD)]
    heard: list[Heard] = [(f"Agent {a + 1}", text) for a, text in spoken]
    if decides:
        chat = build_chat(problem, style="compact", name="Judge", heard=heard, answering=True)
        weights = settings.answer_habit if mixed else (0.1, 0.2, 0.35, 0.35)
        return Example(chat, say_answer(_pick(weights, rng), facts, frozenset(a for a, _ in spoken), rng))
    agent = rng.randrange(agents)
    name = f"Agent {agent + 1}"
    before = heard if rng.random() < 0.15 else []
    chat = build_chat(problem, style="compact", name=name, heard=before, note=note_text(facts, agent))
    first = settings.first_token_weight if by_need else 0.0
    return Example(chat, say_note(_pick(habits[agent], rng), facts, agent, rng), first_weight=first)


def _concise(rng: random.Random, settings: WarmStartSettings) -> Example:
    return draw_recall(rng) if rng.random() < 0.2 else draw_example(rng, settings, mixed=False, ask_fewer=0.5)


def build_tokenizer(settings: WarmStartSettings) -> Any:
    """Train the byte-level BPE on the recipe's own transcripts and wrap it as a Hugging Face tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(settings.seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Words and numbers keep the space before them, so " Ben" and " 17" can each become one token.
            pre_tokenizers.Split(Regex(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = []
    for _ in range(6000):
        example = draw_example(rng, settings, mixed=True, ask_fewer=0.5)
        corpus.append("\n".join([*(" " + turn["content"] for turn in example.chat), " " + example.reply]))
    corpus += [f" {number} {number}" for number in range(100) for _ in range(200)]
    tokenizer.train_from_iterator(corpus, trainer)
    pad, end = SPECIAL_TOKENS[0], SPECIAL_TOKENS[-1]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        eos_token=end,
        additional_special_tokens=list(SPECIAL_TOKENS[1:-1]),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=settings.context,
    )


def build_model(settings: WarmStartSettings, vocabulary: int, tokenizer: Any) -> Any:
    """A Qwen3 decoder of about a million parameters, freshly initialised."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(settings.seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        head_dim=settings.hidden_size // settings.heads,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        initializer_range=settings.initialiser,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def encode(example: Example, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Prompt ids and reply ids (end token included), as they meet in a rollout."""
    prompt = tokenizer.apply_chat_template(example.chat, add_generation_prompt=True, tokenize=False)
    prompt += f" {example.lead}" if example.lead else ""
    reply = (f" {example.reply}" if example.reply else "") + SPECIAL_TOKENS[-1]
    ids: list[list[int]] = tokenizer([prompt, reply], add_special_tokens=False)["input_ids"]
    return ids[0], ids[1]


Rows = list[tuple[list[int], list[int]]]
Batch = list[tuple[Tensor, Tensor]]


def batches(
    settings: WarmStartSettings,
    tokenizer: Any,
    draw: Callable[[random.Random], Example],
    seed: int,
    rows: int | None = None,
) -> Iterator[Batch]:
    """Endless batches, each a list of micro-batches (ids [n, T], own [n, T]); `own` is 0 but where the speaker itself
    speaks: there it is the weight of the token, 1 but for first tokens that count more.

    The micro-batches of one batch are cut by length to save padding; a batch as a whole is a plain random draw.
    """
    rng = random.Random(seed)
    while True:
        examples = [draw(rng) for _ in range(rows or settings.batch_rows)]
        drawn = [encode(example, tokenizer) for example in examples]
        said = sum(len(reply) for _, reply in drawn) / len(drawn)  # a mean over rows is this much of a mean over tokens
        firsts = [1.0 + example.first_weight * said for example in examples]
        lengths = [len(prompt) + len(reply) for prompt, reply in drawn]
        cuts = token_budget_batches(lengths, settings.micro_batch_tokens)
        yield [_collate([drawn[i] for i in cut], [firsts[i] for i in cut], tokenizer.pad_token_id) for cut in cuts]


def _collate(rows: Rows, firsts: Sequence[float], pad: int) -> tuple[Tensor, Tensor]:
    width = max(len(prompt) + len(reply) for prompt, reply in rows)
    ids = torch.full((len(rows), width), pad)
    own = torch.zeros((len(rows), width))
    for i, ((prompt, reply), first) in enumerate(zip(rows, firsts, strict=True)):
        ids[i, : len(prompt) + len(reply)] = torch.tensor(prompt + reply)
        own[i, len(prompt) : len(prompt) + len(reply)] = 1.0
        own[i, len(prompt)] = first
    return ids, own


def supervised_loss(model: Any, ids: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of next-token cross-entropies; a position of weight 0 (`weights` [N, T]) is not predicted."""
    logits = model(input_ids=ids, use_cache=False).logits
    wanted = weights[:, 1:] > 0
    nll = F.cross_entropy(logits[:, :-1][wanted], ids[:, 1:][wanted], reduction="none")
    return (nll * weights[:, 1:][wanted]).sum()


@dataclass
class _Lesson:
    """Batches that are trained on for some steps, or until they are mastered."""

    name: str
    batches: Iterator[Batch]
    steps: int
    until: float | None = None
    """Mean loss of 25 steps at which the lesson ends early."""


@dataclass
class _Stage:
    """Lessons that share an optimiser and its schedule."""

    name: str
    lessons: list[_Lesson]
    learning_rate: float
    warmup: int
    horizon: int | None = None
    """Steps after which the cosine would reach its floor; `None` keeps the rate as it is."""
    whole_rows: bool = False
    """Every second batch carries the language-model loss on whole rows."""

    def rate(self, step: int) -> float:
        warm = self.learning_rate * min(1.0, (step + 1) / self.warmup)
        if self.horizon is None:
            return warm
        return warm * (0.05 + 0.475 * (1 + math.cos(math.pi * min(step / self.horizon, 1.0))))


def reading_stage(settings: WarmStartSettings, tokenizer: Any) -> _Stage:
    """The drill and the short transcripts: looking back, binding names to counts."""
    drill = batches(settings, tokenizer, draw_recall, settings.seed)
    concise = batches(settings, tokenizer, lambda rng: _concise(rng, settings), settings.seed + 1)
    lessons = [_Lesson("recall", drill, settings.recall_steps), _Lesson("concise", concise, settings.concise_steps)]
    return _Stage(
        "reading", lessons, settings.learning_rate, settings.warmup_steps, settings.reading_horizon, whole_rows=True
    )


SHORT = (0.0, 0.0, 1.0)
LESSONS: tuple[tuple[str, int], ...] = (
    ("sum", 1),
    ("choice", 1),
    ("comparison", 2),
    ("sum", 2),
    ("sum", 3),
    ("choice", 2),
)
"""Kinds of questions (family, notes asked for) in the order in which they are taught: look up one count, match it with
its letter, compare two, add two, add three, add two and match."""


def answering_stage(settings: WarmStartSettings, tokenizer: Any) -> _Stage:
    """One kind of question more in every lesson; the newest makes up half of it."""
    lessons = []
    for number, newest in enumerate(LESSONS):
        kinds = (*LESSONS[:number], *[newest] * max(1, number))
        drawn = batches(
            settings,
            tokenizer,
            lambda rng, kinds=kinds: draw_answer(rng, settings, kinds, SHORT),  # type: ignore[misc]
            settings.seed + 10 + number,
            settings.answer_rows,
        )
        name = f"{newest[0]} of {newest[1]}"
        lessons.append(_Lesson(name, drawn, settings.lesson_steps, settings.mastered_loss))
    return _Stage("answering", lessons, settings.answer_learning_rate, settings.later_warmup_steps)


def habit_stage(settings: WarmStartSettings, tokenizer: Any) -> _Stage:
    """In turn: what agents say, what deciders say, bare answers after all forms of talk."""
    lesson = _mixture(settings, tokenizer, settings.habit_steps, settings.seed + 2)
    return _Stage("habit", [lesson], settings.habit_learning_rate, settings.later_warmup_steps, settings.habit_steps)


def polish_stage(settings: WarmStartSettings, tokenizer: Any) -> _Stage:
    """The same once more at a lower rate, with more bare answers."""
    settings = replace(settings, answer_habit=settings.polish_answer_habit)
    lesson = _mixture(settings, tokenizer, settings.polish_steps, settings.seed + 20)
    rate = settings.polish_learning_rate
    return _Stage("polish", [lesson], rate, settings.later_warmup_steps, settings.polish_steps)


def need_stage(settings: WarmStartSettings, tokenizer: Any) -> _Stage:
    """The mixture with habits by need: who is not asked is silent now and then."""
    settings = replace(settings, answer_habit=settings.polish_answer_habit)
    lesson = _mixture(settings, tokenizer, settings.need_steps, settings.seed + 900, by_need=True)
    return _Stage("need", [lesson], settings.need_learning_rate, settings.later_warmup_steps, settings.need_steps)


def _mixture(settings: WarmStartSettings, tokenizer: Any, steps: int, seed: int, *, by_need: bool = False) -> _Lesson:
    """Batches of three kinds by turns, each with its own mean: the few tokens that decide would drown in speeches."""
    forms = (0.4, 0.2, 0.4)
    draws: tuple[Callable[[random.Random], Example], ...] = (
        lambda rng: draw_example(rng, settings, mixed=True, decides=False, by_need=by_need),
        lambda rng: draw_example(rng, settings, mixed=True, decides=True),
        lambda rng: draw_answer(rng, settings, LESSONS, forms),
    )
    sources = [batches(settings, tokenizer, draw, seed + number) for number, draw in enumerate(draws)]
    return _Lesson("mixture", (batch for turn in zip(*sources, strict=True) for batch in turn), steps)


def train(settings: WarmStartSettings, model: Any, tokenizer: Any, stage: _Stage) -> list[dict[str, float | str]]:
    """Run one stage with an optimiser of its own; returns the loss curve (means over 25 steps)."""
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=settings.weight_decay, betas=(0.9, 0.98))
    curve: list[dict[str, float | str]] = []
    started, seen, step = time.monotonic(), 0, 0
    model.train()
    for lesson in stage.lessons:
        losses: dict[bool, list[float]] = {False: [], True: []}
        for taken, micro_batches in enumerate(itertools.islice(lesson.batches, lesson.steps), start=1):
            whole_row = stage.whole_rows and step % 2 == 1
            weights = [(ids != tokenizer.pad_token_id).float() if whole_row else own for ids, own in micro_batches]
            predicted = sum(int((weight[:, 1:] > 0).sum()) for weight in weights)
            total = 0.0
            for (ids, _), weight in zip(micro_batches, weights, strict=True):
                loss = supervised_loss(model, ids, weight) / predicted
                loss.backward()
                total += loss.item()
                seen += ids.numel()
            losses[whole_row].append(total)
            for group in optimiser.param_groups:
                group["lr"] = stage.rate(step)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            step += 1
            if taken % 25 == 0 or taken == lesson.steps:
                means = {_NAMES[k]: sum(v) / len(v) for k, v in losses.items() if v}
                curve.append({"stage": stage.name, "lesson": lesson.name, "step": step, **means})
                losses = {False: [], True: []}
                log.info("%s %.0f tok/s", curve[-1], seen / (time.monotonic() - started))
                if lesson.until is not None and means["loss_own"] < lesson.until:
                    break
    return curve


def run(settings: WarmStartSettings, out: Path, start: Path | None = None) -> dict[str, Any]:
    """Build tokenizer and weights and write them, with the record of the run, to `out`.

    Every stage leaves its weights and the record so far in a folder of its name. `start` names such a folder: the
    stages up to it are taken over, and with the same settings the outcome is the same, since each stage draws its data
    and makes its optimiser anew.
    """
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(settings.threads)
    started = time.monotonic()
    tokenizer = build_tokenizer(settings)
    record: dict[str, Any] = {}
    curve: list[dict[str, float | str]] = []
    before = 0.0
    stages = [
        reading_stage(settings, tokenizer),
        answering_stage(settings, tokenizer),
        habit_stage(settings, tokenizer),
        polish_stage(settings, tokenizer),
        need_stage(settings, tokenizer),
    ]
    names = [stage.name for stage in stages]
    if start is None:
        model = build_model(settings, len(tokenizer), tokenizer)
    elif start.name not in names:
        raise ValueError(f"warm start: {start} is no stage's folder; expected one of {', '.join(names)}")
    else:
        model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
        stages = stages[names.index(start.name) + 1 :]
        record = json.loads((start / RECORD).read_text())
        curve, before = record["curve"], record["seconds"]
    for stage in stages:
        curve += train(settings, model, tokenizer, stage)
        record = {
            "settings": asdict(settings),
            "parameters": sum(p.numel() for p in model.parameters()),
            "seconds": round(before + time.monotonic() - started, 1),
            "torch": torch.__version__,
            "curve": curve,
        }
        save(model, tokenizer, out / stage.name, record)
    save(model, tokenizer, out, record)
    return record


def save(model: Any, tokenizer: Any, out: Path, record: dict[str, Any] | None = None) -> None:
    """Write model and tokenizer in ordinary Hugging Face form, and the record of how they came about."""
    out.mkdir(parents=True, exist_ok=True)
    if record is not None:
        (out / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: rebuild the tiny policy."""
    parser = argparse.ArgumentParser(description="Rebuild the tiny policy from nothing.")
    defaults = WarmStartSettings()
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, tokenizer and record")
    parser.add_argument("--threads", type=int, default=defaults.threads)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--start", type=Path, help="folder of an earlier run's stage, to repeat only what follows it")
    parsed = vars(parser.parse_args(arguments))
    out, start = parsed.pop("out"), parsed.pop("start")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    run(WarmStartSettings(**parsed), out, start)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
