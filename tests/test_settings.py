"""Profiles and overrides: a misspelt or mistyped setting is an error that names its place."""

from __future__ import annotations

import dataclasses
import typing

import pytest
import yaml

import agent_gspo_core.kit.settings as module
from agent_gspo_core.kit.settings import (
    DataSettings,
    Profile,
    RunSettings,
    build,
    load_profile,
    override,
    profile_names,
)
from agent_gspo_core.rollout import Role


def read(text: str) -> Profile:
    return build(Profile, yaml.safe_load(text), where="profile mine")


def test_a_profile_fills_the_settings_and_leaves_the_rest_at_their_defaults():
    profile = read("""
        description: small
        seeds: [3, 4]
        jobs: 2
        timeout_minutes: 5
        settings:
          policy: {model: smollm2, train: lora, context: null}
          team: {agents: 2, roles: [{name: Solver, instruction: Solve.}, {name: Critic}]}
          trainer: {steps: 7, learning_rate: 1.0e-4}
          budget: {episode_tokens: 40, round_tokens: [30, 20]}
          data: {hidden_profile: {families: [sum]}}
    """)
    assert profile.seeds == (3, 4)
    assert isinstance(profile.timeout_minutes, float)
    settings = profile.settings
    assert settings.policy.model == "smollm2"
    assert settings.policy.context is None
    assert settings.team.roles == (Role("Solver", "Solve."), Role("Critic"))
    assert settings.trainer.learning_rate == 1e-4
    assert settings.budget.episode_tokens == 40
    assert settings.budget.round_tokens == (30, 20)
    assert settings.data.hidden_profile.families == ("sum",)
    assert settings.objective == RunSettings().objective
    assert settings.trainer.members == RunSettings().trainer.members


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("description: x\nsteps: 3", "profile mine: unknown field 'steps'; Profile has"),
        ("description: x\nsettings: {trainer: {step: 3}}", r"profile mine\.settings\.trainer: unknown field 'step'"),
        ("description: x\n7: y", "unknown field '7'"),
        ("description: x\nsettings: {trainer: {steps: 3.5}}", r"trainer\.steps: expected int, got 3\.5"),
        ("description: x\nsettings: {trainer: {steps: true}}", r"trainer\.steps: expected int, got True"),
        ("description: x\nsettings: {trainer: {steps: '3'}}", r"trainer\.steps: expected int, got '3'"),
        ("description: x\nsettings: {trainer: {steps: null}}", r"trainer\.steps: expected int, got None"),
        ("description: x\nsettings: {trainer: {learning_rate: 1e-4}}", r"expected float, got '1e-4' \(write 1\.0e-4"),
        ("description: x\nsettings: {trainer: {learning_rate: false}}", "expected float, got False"),
        ("description: x\nsettings: {trainer: {grouping: both}}", r"grouping: 'both' is not one of 'episode', 'turn'"),
        ("description: x\nsettings: {team: {roles: Solver}}", r"team\.roles: expected a list, got 'Solver'"),
        ("description: x\nsettings: {team: {roles: [Solver]}}", r"roles\[0\]: expected a mapping of Role fields"),
        ("description: x\nsettings: {budget: {round_tokens: ten}}", r"round_tokens: 'ten' fits none of"),
        ("description: x\nsettings: {reward: {charge: nobody}}", r"settings\.reward.*charge"),
        ("description: x\nsettings: {trainer: {members: 1}}", r"settings\.trainer: trainer: members is 1"),
        ("description: x\nsettings: {budget: {episode_tokens: 0}}", r"settings\.budget: episode_tokens is 0"),
        ("description: x\nsettings: {reward: {lambda_token: .nan}}", r"settings\.reward: lambda_token is nan"),
        ("description: x\nsettings: []", r"profile mine\.settings: expected a mapping of RunSettings fields, got \[\]"),
        ("seeds: [1]", "field 'description' is missing; Profile has no default for it"),
        ("", "expected a mapping of Profile fields, got None"),
        ("description: x\nseeds: []", "seeds must be given and distinct"),
        ("description: x\nseeds: [1, 1]", "seeds must be given and distinct"),
        ("description: x\njobs: 0", "jobs must be at least 1"),
        ("description: x\nsettings: {data: {train_problems: 0}}", "train_problems must be at least 1"),
        ("description: x\nsettings: {data: {source: hearsay}}", "source: 'hearsay' is not one of"),
    ],
)
def test_a_wrong_profile_is_refused_and_the_place_named(text, message):
    with pytest.raises(ValueError, match=message):
        read(text)


def test_a_profile_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nsettings: {trainer: {steps: 2}}\n", encoding="utf-8")
    assert load_profile(path).settings.trainer.steps == 2
    assert load_profile(str(path)).description == "mine"


def test_an_unknown_profile_names_those_that_ship(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PROFILES", tmp_path)
    (tmp_path / "smoke.yaml").write_text("description: s\n", encoding="utf-8")
    assert profile_names() == ["smoke"]
    assert load_profile("smoke").description == "s"
    with pytest.raises(FileNotFoundError, match=r"profile 'smok' not found; choose from smoke or give a \.yaml file"):
        load_profile("smok")


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_loads(name):
    assert load_profile(name).description


def test_overrides_reach_any_depth_and_leave_the_original_alone():
    settings = RunSettings()
    changed = override(
        settings,
        {
            "trainer.steps": 3,
            "trainer.learning_rate": 1,
            "data.hidden_profile.agents": 4,
            "budget.round_tokens": [5, 6],
            "team": {"agents": 4},
        },
    )
    assert changed.trainer.steps == 3
    assert isinstance(changed.trainer.learning_rate, float)
    assert changed.data.hidden_profile.agents == 4
    assert changed.budget.round_tokens == (5, 6)
    assert changed.team.agents == 4
    assert settings == RunSettings()


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_overrides_does_not_matter(order):
    """Either change alone would be refused: the floor would lie above λ, or λ above the ceiling."""
    changes = [("budget.lambda_floor", 3.0), ("budget.lambda_initial", 3.0), ("budget.lambda_ceiling", 4.0)]
    settings = override(RunSettings(), dict(changes[::order]))
    assert settings.budget.lambda_initial == 3.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer.step": 3}, r"settings\.trainer: unknown setting 'step'"),
        ({"train.steps": 3}, r"settings: unknown setting 'train\.steps'"),
        ({"trainer.steps.more": 3}, r"settings\.trainer\.steps: unknown setting 'more'"),
        ({"data.root.more": 3}, r"settings\.data\.root: unknown setting 'more'"),
        ({"trainer.steps": "three"}, r"settings\.trainer\.steps: expected int, got 'three'"),
        ({"trainer.members": 1}, "members is 1"),
        ({"budget.episode_tokens": -1.0}, "episode_tokens is -1.0"),
    ],
)
def test_a_wrong_override_is_refused_and_the_place_named(changes, message):
    with pytest.raises(ValueError, match=message):
        override(RunSettings(), changes)


def test_every_field_of_the_run_says_what_it_is():
    """The one place where a user looks a setting up is the line under its field."""
    import inspect

    def visit(kind: type) -> None:
        source = inspect.getsource(kind)
        for field in dataclasses.fields(kind):
            hint = typing.get_type_hints(kind)[field.name]
            if dataclasses.is_dataclass(hint) and kind is RunSettings:
                visit(hint)
            else:
                after = source.split(f"\n    {field.name}:", 1)[1].split("\n    ", 2)
                assert after[1].startswith('"""'), f"{kind.__name__}.{field.name} has no line of documentation"

    visit(RunSettings)
    visit(Profile)


def test_data_needs_problems_on_both_sides():
    with pytest.raises(ValueError, match="test_problems must be at least 1, got 0"):
        DataSettings(test_problems=0)
