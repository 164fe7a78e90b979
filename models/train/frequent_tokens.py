#!/usr/bin/env python3
"""Ranks the tokens of a tokenizer by how often they occur in texts, for a draft's --frequent-tokens.

    models/train/frequent_tokens.py MODEL_DIR TEXT...

Writes MODEL_DIR/frequent_tokens.json: all ids, most frequent first; those that do not occur come last. Texts are UTF-8
files, preferably like those that the model will write. Needs the package tokenizers (models/train/requirements.txt).
"""

import argparse
import collections
import json
from pathlib import Path

from tokenizers import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL_DIR")
    parser.add_argument("texts", type=Path, nargs="+", metavar="TEXT")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    config = json.loads((options.model / "config.json").read_text())
    counts: collections.Counter[int] = collections.Counter()
    for text in options.texts:
        counts.update(tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False).ids)
    end = config.get("eos_token_id", [])
    ends = end if isinstance(end, list) else [end]
    # Each text counts as ending once, though its file has no end token.
    counts.update(dict.fromkeys(ends, len(options.texts)))
    ranked = sorted(range(config["vocab_size"]), key=lambda token: (-counts[token], token))
    (options.model / "frequent_tokens.json").write_text(json.dumps({"tokens": ranked}) + "\n")
    seen = sum(counts.values())
    for count in (len(ranked) // 16, len(ranked) // 8, len(ranked) // 4, len(ranked) // 2):
        share = sum(counts[token] for token in ranked[:count]) / seen
        print(f"the first {count} are {100 * share:.1f} % of {seen} tokens")


if __name__ == "__main__":
    main()
