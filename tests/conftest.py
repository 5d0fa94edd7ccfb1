"""Settings for every test, made before torch, transformers or Unsloth is imported."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import matplotlib
from hypothesis import settings

# Settings in the environment also reach the processes and notebook kernels that tests start.
# One thread each: two OpenMP teams on two cores run many times slower than alone (unless told otherwise).
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tests live on what the repository holds: nothing may ask a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"
# Unsloth writes generated modules at import, by default into the working folder.
os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(Path(tempfile.gettempdir()) / "unsloth_compiled_cache"))

# Not MPLBACKEND: notebook kernels would inherit it, and their figures would vanish from the executed copies.
matplotlib.use("Agg")

# The same examples in every run; a failure prints how to get it back, and no example database is written.
settings.register_profile("house", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("house")

# Last, because it imports torch: the small policy that many tests speak with.
from fixtures import random_policy, random_policy_folder  # noqa: E402, F401
