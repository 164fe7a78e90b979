"""GGUF files of the small models, written by llama.cpp's own converter, with a made-up vocabulary."""

import json
import logging
import shutil
import sys
import tempfile
import types
from pathlib import Path

from paths import DATA

MODELS = ["mha-float32", "gqa4-llama3-rope", "qwen2-bias", "qwen3-head-norms", "mistral-window", "gemma2", "gemma3"]


def set_vocab(converter):
    count = converter.hparams["vocab_size"]
    writer = converter.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"token{i}" for i in range(count)])
    writer.add_token_types([1] * count)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def main(llama_cpp: Path):
    """`llama_cpp` is the folder of its sources: vendor/llama.cpp in the archive of scripts/sources.txt."""
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import conversion
    import gguf
    logging.disable(logging.WARNING)
    for name in MODELS:
        out = DATA / "engine" / name / "model.gguf"
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(out.parent, Path(folder) / name))
            hparams = conversion.ModelBase.load_hparams(copy, False)
            # Gemma's converter counts the tokens there.
            vocab = {f"token{i}": i for i in range(hparams["vocab_size"])}
            (copy / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
            kind = conversion.get_model_class(conversion.get_model_architecture(hparams, conversion.ModelType.TEXT))
            stored = gguf.LlamaFileType.ALL_F32 if hparams["dtype"] == "float32" else gguf.LlamaFileType.MOSTLY_BF16
            converter = kind(copy, stored, out, eager=True, model_name=name)
            converter.set_vocab = types.MethodType(set_vocab, converter)
            converter.write()
        print(out.relative_to(DATA.parents[1]), out.stat().st_size, "bytes")
