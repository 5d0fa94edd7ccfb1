"""The tiny policy's recipe: the language it teaches, and a few steps of it end to end."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures import TINY, build_policy, load_random, tokenizer

import agent_gspo_core.warm_start as module
from agent_gspo_core.benchmarks.hidden_profile import HiddenProfileSettings, draw_split, note_text, to_problem
from agent_gspo_core.policy import PolicySettings, load_policy
from agent_gspo_core.rollout import Team, TeamSettings
from agent_gspo_core.scoring import is_correct, read_answer
from agent_gspo_core.warm_start import (
    LESSONS,
    OPENERS,
    PASS_WORD,
    SPECIAL_TOKENS,
    WarmStartSettings,
    batches,
    build_model,
    draw_answer,
    draw_example,
    draw_recall,
    encode,
    main,
    say_answer,
    say_note,
    supervised_loss,
)

SETTINGS = WarmStartSettings()
FACTS = [draw_split("train", index, 0, HiddenProfileSettings()) for index in range(60)]


@pytest.mark.parametrize("form", range(4))
def test_every_form_of_an_answer_is_read_back_as_right(form):
    for facts in FACTS:
        problem = to_problem(facts, "p")
        said = say_answer(form, facts, frozenset(range(3)), random.Random(0))
        assert is_correct(read_answer(said, problem), problem), said


def test_who_heard_nothing_does_not_know():
    for facts in FACTS:
        said = say_answer(0, facts, frozenset(), random.Random(0))
        assert read_answer(said, to_problem(facts, "p")) is None


def test_messages_tell_the_note_or_are_silence():
    team = Team(TeamSettings())
    for facts in FACTS:
        name, count = facts.names[1], str(facts.values[1])
        forms = [say_note(form, facts, 1, random.Random(0)) for form in range(5)]
        assert all(name in said and count in said for said in forms[:3])
        assert note_text(facts, 1) in forms[0]
        assert len(forms[0]) > len(forms[1]) > len(forms[2])
        assert [team.is_silent(said) for said in forms] == [False, False, False, True, True]
    assert TeamSettings().pass_word == PASS_WORD


def test_examples_come_from_the_training_split_alone(monkeypatch):
    splits = Counter()
    real = module.draw_split

    def watching(split, *rest):
        splits[split] += 1
        return real(split, *rest)

    monkeypatch.setattr(module, "draw_split", watching)
    rng = random.Random(0)
    for mixed in (True, False):
        for _ in range(50):
            draw_example(rng, SETTINGS, mixed=mixed)
    assert splits.keys() == {"train"}


def test_the_habit_is_verbose_and_the_short_forms_are_in_its_support():
    rng = random.Random(0)
    examples = [draw_example(rng, SETTINGS, mixed=True) for _ in range(1500)]
    talk = [e.reply for e in examples if e.chat[0]["content"] != "Judge"]
    assert len(talk) > 250
    long = sum(len(said.split()) > 12 for said in talk) / len(talk)
    assert 0.45 < long < 0.75
    assert sum(said == "" for said in talk) >= 3
    assert sum(said == PASS_WORD for said in talk) >= 2
    assert any(len(said.split()) == 2 for said in talk)
    judged = [e for e in examples if e.chat[0]["content"] == "Judge"]
    assert not any("Note:" in e.chat[1]["content"] for e in judged)  # a judge holds no note
    assert not any(PASS_WORD in e.chat[1]["content"] for e in examples)  # silence is never relayed


def test_recall_rows_repeat_what_stands_before():
    rng = random.Random(1)
    for _ in range(50):
        example = draw_recall(rng)
        shown = set(example.chat[0]["content"].replace("(", " ").replace(")", " ").split())
        assert set(example.reply.split()) - {"####"} <= shown


def test_answer_rows_train_only_the_right_answer_of_the_kind_asked_for():
    rng = random.Random(1)
    for kind in LESSONS:
        for forms in ((0.0, 0.0, 1.0), (0.4, 0.2, 0.4)):
            for _ in range(10):
                example = draw_answer(rng, SETTINGS, [kind], forms)
                assert example.lead == "####"
                prompt, reply = encode(example, tokenizer())
                assert tokenizer().decode(prompt).endswith("####")
                assert tokenizer().decode(reply) == f" {example.reply}<|end|>"
                question, *said = example.chat[1]["content"].split("\n")
                counts = {n: int(v) for line in said for n, v in re.findall(r"([A-Z]\w+) (?:has )?(\d)", line)}
                asked = [name for name in re.findall(r"\w+", question) if name in counts]
                assert len(asked) == kind[1], question
                total = sum(counts[name] for name in asked)
                if kind[0] == "sum":
                    assert example.reply == str(total)
                elif kind[0] == "comparison":
                    assert example.reply == max(asked, key=lambda name: counts[name])
                else:
                    assert f"({example.reply}) {total}" in question


def test_an_agent_that_is_not_asked_says_so_and_talks_all_the_same():
    for facts in FACTS:
        for agent in range(len(facts.names)):
            said = say_note(0, facts, agent, random.Random(1))
            assert said.startswith(OPENERS[agent in facts.asked])
            assert note_text(facts, agent) in said
    assert not set(OPENERS[True]) & set(OPENERS[False])


def test_a_long_message_fits_the_teams_cap():
    shipped = load_policy(PolicySettings(device="cpu"))
    longest = 0
    for facts in FACTS:
        for seed in range(8):
            for agent in range(3):
                said = say_note(0, facts, agent, random.Random(seed))
                longest = max(longest, shipped.count(said) + 1)
    assert 35 < longest <= TeamSettings().message_tokens


def test_rows_are_tokenised_as_they_meet_in_a_rollout(random_policy):
    rng = random.Random(2)
    for _ in range(40):
        example = draw_example(rng, SETTINGS, mixed=True)
        prompt, reply = encode(example, tokenizer())
        assert tuple(prompt) == random_policy.encode_chat(example.chat)
        assert reply[-1] in random_policy.end_ids
        assert not set(reply[:-1]) & random_policy.end_ids
        assert random_policy.decode(reply) == example.reply


def test_only_the_speakers_own_words_are_marked():
    settings = replace(SETTINGS, batch_rows=12, micro_batch_tokens=400)
    micro_batches = next(batches(settings, tokenizer(), lambda rng: draw_example(rng, settings, mixed=True), 3))
    rng = random.Random(3)
    rows = [encode(draw_example(rng, settings, mixed=True), tokenizer()) for _ in range(12)]
    found = []
    assert len(micro_batches) > 1
    for ids, own in micro_batches:
        assert ids.numel() <= 400 or len(ids) == 1
        for row, weights in zip(ids, own, strict=True):
            mark = weights > 0
            reply = row[mark].tolist()
            start = int(mark.nonzero()[0])
            found.append((row[:start].tolist(), reply))
            assert (row[start + len(reply) :] == tokenizer().pad_token_id).all()
    assert sorted(found) == sorted(rows)


def test_the_tokenizer_gives_every_text_back_and_keeps_its_marks_apart():
    text = " Ben has 17 pens.\nWhy? #### 4 (A) 7 [pass] ünïcode →"
    ids = tokenizer()(text, add_special_tokens=False)["input_ids"]
    assert tokenizer().decode(ids) == text
    assert [tokenizer().convert_tokens_to_ids(mark) for mark in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert not set(ids) & {0, 1, 2, 3, 4}
    assert len({tokenizer()(f" {n}", add_special_tokens=False)["input_ids"][0] for n in range(2, 10)}) == 8


TOY = replace(
    TINY,
    batch_rows=8,
    recall_steps=3,
    concise_steps=9,
    reading_horizon=12,
    lesson_steps=4,
    answer_rows=6,
    habit_steps=6,
    polish_steps=6,
    need_steps=3,
    need_learning_rate=1e-2,
    warmup_steps=3,
    later_warmup_steps=2,
    learning_rate=1e-2,
    answer_learning_rate=1e-2,
    habit_learning_rate=1e-2,
    polish_learning_rate=1e-2,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The whole recipe at toy size, and its last stage once more; the tokenizer, trained once, is the same."""
    whole, resumed = (tmp_path_factory.mktemp("warm") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "build_tokenizer", lambda _: tokenizer())
        module.run(TOY, whole)
        module.run(TOY, resumed, whole / "reading")
    return whole, resumed


def test_a_few_steps_teach_something_and_load_as_a_policy(built):
    record = json.loads((built[0] / "warm_start.json").read_text())
    assert record["settings"]["recall_steps"] == TOY.recall_steps
    assert record["parameters"] == build_policy().parameters
    first, polished, last = record["curve"][0], record["curve"][-2], record["curve"][-1]
    assert (first["stage"], first["lesson"], first["step"]) == ("reading", "recall", 3)
    assert (polished["stage"], polished["step"]) == ("polish", 6)
    assert (last["stage"], last["step"]) == ("need", 3)
    assert polished["loss_own"] < 0.9 * math.log(TOY.vocabulary)  # an untaught one has all of it
    policy = load_random(built[0])
    assert policy.context == TOY.context
    assert policy.tokenizer.convert_ids_to_tokens(sorted(policy.end_ids)) == ["<|end|>"]
    assert policy.pad_id not in policy.end_ids


def test_the_recipe_goes_on_from_a_stage_to_the_same_weights(built):
    first, second = (load_random(folder).state() for folder in built)
    assert all(torch.equal(first[name], second[name]) for name in first)
    earlier = load_random(built[0] / "reading").state()
    assert any(not torch.equal(first[name], earlier[name]) for name in first)


def test_a_start_that_is_no_stage_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "build_tokenizer", lambda _: tokenizer())
    with pytest.raises(
        ValueError,
        match=r"somewhere is no stage's folder; expected one of reading, answering, habit, polish, need",
    ):
        module.run(TOY, tmp_path, tmp_path / "somewhere")


def test_another_seed_draws_other_rows():
    rows = [next(batches(replace(SETTINGS, batch_rows=4), tokenizer(), draw_recall, seed))[0][0] for seed in (0, 1, 0)]
    assert torch.equal(rows[0], rows[2])
    assert rows[0].shape != rows[1].shape or not torch.equal(rows[0], rows[1])


def test_the_command_hands_its_options_on(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(module, "run", lambda *given: seen.append(given))
    assert main(["--out", str(tmp_path), "--seed", "3", "--threads", "2", "--start", "x/reading"]) == 0
    assert seen == [(replace(WarmStartSettings(), seed=3, threads=2), tmp_path, Path("x/reading"))]


def test_by_need_who_is_not_asked_keeps_silent_now_and_then_and_who_is_asked_hardly_ever() -> None:
    rng = random.Random(3)
    silent: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(1500):
        example = draw_example(rng, SETTINGS, mixed=True, decides=False, by_need=True)
        question, note = (example.chat[1]["content"].split(mark)[-1] for mark in ("Question: ", "Note: "))
        silent[note.split()[0] in question.split("?")[0]].append(example.reply == "")
    asked, not_asked = (sum(silent[key]) / len(silent[key]) for key in (True, False))
    assert asked < 0.03
    assert 0.24 < not_asked < 0.36


def test_first_tokens_count_as_a_mean_of_their_own() -> None:
    settings = replace(SETTINGS, batch_rows=24)
    for by_need in (True, False):
        drawn = batches(
            settings,
            tokenizer(),
            lambda rng, by_need=by_need: draw_example(rng, settings, mixed=True, decides=False, by_need=by_need),  # type: ignore[misc]
            5,
        )
        weights = [row for _, own in next(drawn) for row in own]
        tokens = sum(int((row > 0).sum()) for row in weights)
        for row in weights:
            first, *rest = row[row > 0].tolist()
            assert set(rest) <= {1.0}
            assert first == pytest.approx(1 + settings.first_token_weight * by_need * tokens / 24)


def test_weights_of_the_loss_are_those_of_its_gradient() -> None:
    model, ids = build_model(SETTINGS, 64, tokenizer()), torch.arange(1, 9)[None]
    one, two = torch.zeros(1, 8), torch.zeros(1, 8)
    one[0, 3], two[0, 6] = 1.0, 1.0
    together = supervised_loss(model, ids, one + 30 * two)
    apart = supervised_loss(model, ids, one) + 30 * supervised_loss(model, ids, two)
    assert torch.allclose(together, apart, rtol=1e-6)
