"""What an agent reads: nothing missing, nothing of somebody else's."""

from __future__ import annotations

import re

import pytest

from agent_gspo_core.episode import Problem
from agent_gspo_core.prompts import build_chat, render_question

SUM = Problem("p", "How many pens do Ben and Ida have together?", "9", notes=("Ben has 3 pens.", "Ida has 6 pens."))
CHOICE = Problem("c", "How many pens does Ben have?", "B", kind="choice", choices=("7", "3", "5"))
HEARD = [("Agent 1", "Ben 3"), ("Agent 2", "Ida 6")]


def test_compact_chat_is_name_question_note_and_what_was_heard_in_that_order():
    chat = build_chat(SUM, style="compact", name="Agent 2", heard=HEARD[:1], note="Ida has 6 pens.")
    assert chat == [
        {"role": "system", "content": "Agent 2"},
        {
            "role": "user",
            "content": "How many pens do Ben and Ida have together?\nNote: Ida has 6 pens.\nAgent 1: Ben 3",
        },
    ]


def test_compact_chat_names_neither_pass_word_nor_instruction():
    """The tiny policy was warmed up on this language and on no other."""
    plain = build_chat(SUM, style="compact", name="Judge", heard=HEARD)
    assert (
        build_chat(
            SUM, style="compact", name="Judge", heard=HEARD, answering=True, instruction="Be kind.", pass_word="[pass]"
        )
        == plain
    )


def test_instruct_chat_explains_the_game_once():
    chat = build_chat(
        SUM, style="instruct", name="Agent 1", heard=HEARD, note="Ben has 3 pens.", instruction="You check sums.",
        pass_word="[pass]",
    )  # fmt: skip
    system, user = chat
    assert (system["role"], user["role"]) == ("system", "user")
    assert system["content"].startswith("You are Agent 1. You check sums. ")
    assert "[pass]" in system["content"]
    assert "####" not in system["content"]  # it is not asked for an answer
    assert user["content"].splitlines() == [
        f"Question: {SUM.question}", "Note: Ben has 3 pens.", "Agent 1: Ben 3", "Agent 2: Ida 6",
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "form"), [("number", "the number"), ("choice", "the letter"), ("text", "the answer")])
def test_who_answers_is_told_the_agreed_form_and_no_pass_word(kind, form):
    problem = Problem("p", "What?", "A", kind=kind, choices=("x", "y") if kind == "choice" else ())
    chat = build_chat(problem, style="instruct", name="Judge", heard=[], answering=True, pass_word="[pass]")
    assert re.search(rf"####.{{0,20}} {form}\b", chat[0]["content"])
    assert "[pass]" not in chat[0]["content"]


def test_no_pass_word_is_offered_where_there_is_none():
    chat = build_chat(SUM, style="instruct", name="Agent 1", heard=[])
    assert "nothing to add" not in chat[0]["content"]


def test_options_are_lettered_after_the_question():
    assert render_question(CHOICE) == "How many pens does Ben have? (A) 7 (B) 3 (C) 5"
    assert render_question(SUM) == SUM.question


@pytest.mark.parametrize("style", ["compact", "instruct"])
def test_notes_and_answer_of_the_problem_stay_hidden(style):
    text = str(build_chat(SUM, style=style, name="Agent 1", heard=[], note=SUM.notes[0]))
    assert "Ben has 3" in text
    assert "Ida has 6" not in text
    assert "9" not in text
