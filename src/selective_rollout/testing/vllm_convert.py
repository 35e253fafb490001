"""Turns a gguf file into a folder that vLLM loads; run as a file by a Python that has transformers and gguf.

vLLM has no gguf reader for the CPU, and a quantised model cannot be saved again as it is: the weights are
unpacked to bfloat16, which is what makes this take a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    """Arguments: the gguf file and the folder to write."""
    weights, folder = Path(sys.argv[1]), Path(sys.argv[2])
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # What is saved is not quantised any more; where the config says otherwise, a loader would unpack again.
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    main()
