"""Writes the tests' goldens: outputs of other projects, mostly Hugging Face's libraries, that our code must match.

    python scripts/goldens COMMAND [...]      with the packages of models/train/requirements.txt, jinja2 for `chat`, `published`
                                              and `expressions`, compressed-tensors==0.20.0 for `quantised`, accelerate and gguf
                                              for `smollm2`

Each command prints what it wrote. Run `tokenizer`, `pair`, `heads`, `generation` and `beams` again when the shipped pair
changes.
"""

import argparse
import importlib
from pathlib import Path

from paths import DATA, ROOT

SHIPPED = ROOT / "models" / "tiny-target"

# Command, its output, the module and function that write it, and the arguments, with or without a default.
COMMANDS = [
    ("train", "small tokenizers from blake-poems.txt, and their goldens", "text.train", []),
    ("tokenizer", "goldens of one tokenizer", "text.write_goldens",
     [("tokenizer_path", SHIPPED / "tokenizer.json"), ("golden_path", DATA / "text" / "tiny-target.golden.jsonl")]),
    ("llama3", "hashes of what Llama 3's tokenizer makes of random texts", "llama3.main",
     [("gguf", ROOT / ".venv" / "src" / "llama.cpp" / "models" / "ggml-vocab-llama-bpe.gguf")]),
    ("chat", "conversations as chat templates write them", "chat.main", []),
    ("published", "conversations as published chat templates write them, as hashes", "published_chat.main", []),
    ("tool-chat", "conversations with tools, as published chat templates write them, as hashes", "tool_chat.main", []),
    ("expressions", "expressions as Jinja2 renders them", "expressions.main", []),
    ("controls", "probabilities after logits processors", "controls.main", []),
    ("models", "small random models, and their logits", "engine.random_models", []),
    ("quantised", "small quantised models, and their logits", "quantised.main", []),
    ("converted", "GGUF files of small models", "converted.main", [("llama_cpp", None)]),
    ("smollm2", "greedy answers of a published model in a GGUF file", "smollm2.main", [("file", None)]),
    ("pair", "the best tokens of the shipped pair", "engine.pair", []),
    ("model", "the best tokens of any model", "engine.model", [("folder", None), ("out", None)]),
    ("heads", "the best tokens of the shipped heads", "heads.main", [("folder", SHIPPED)]),
    ("small-heads", "EAGLE and EAGLE-3 for a small target, and their best tokens", "heads.small", []),
    ("generation", "greedy continuations and exact distributions", "generation.main", [("folder", SHIPPED)]),
    ("beams", "beam searches", "beams.main", [("folder", SHIPPED)]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command, what, function, arguments in COMMANDS:
        subparser = commands.add_parser(command, help=what)
        subparser.set_defaults(function=function)
        for name, default in arguments:
            subparser.add_argument(name, type=Path, nargs="?" if default else None, default=default)
    arguments = vars(parser.parse_args())
    del arguments["command"]
    # Only what the command needs has to be installed.
    module, function = arguments.pop("function").split(".")
    getattr(importlib.import_module(module), function)(**arguments)


if __name__ == "__main__":
    main()
