"""Corpus -> tokenizer and token streams.

Reads corpus.tar.xz, cuts every text into documents (a chapter, a speech), trains the tokenizer on the
training documents and writes, under the work folder:

  tokenizer.json   byte-level BPE, 4094 pieces, then BOS 4094 and EOS 4095
  train.npy        all training documents in a shuffled order, EOS after each (uint16)
  heldout.npy      the held-out book, which neither the tokenizer nor a model has seen
"""

import argparse
import random
import re
import tarfile
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from common import BOS, EOS, HERE, VOCAB

HELD_OUT = "austen-sense"
# Line breaks carry meaning in these; in all other books they only come from the printed page.
VERSE = ("blake", "milton", "shakespeare", "whitman")
RAW_SHARE = 6  # one prose chapter in this many keeps the page's line breaks, as prompts may have them
MIN_DOCUMENT = 1500  # characters; a shorter piece (a title, a motto) joins the next piece

# Llama 3's split pattern.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def read_corpus(archive: Path) -> dict[str, str]:
    """Name ("prose/austen-emma") -> text with plain line ends and no trailing blanks."""
    texts = {}
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            if not member.isfile():
                continue
            text = tar.extractfile(member).read().decode("utf-8", "replace").replace("\r\n", "\n")
            texts[member.name.removesuffix(".txt")] = re.sub(r"[ \t]+\n", "\n", text).strip() + "\n"
    return texts


def chapters(text: str) -> list[str]:
    """Cuts a book where two or more blank lines precede a short heading line."""
    text = re.sub(r"\A\[.*?\]\s*", "", text)
    documents, pending = [], ""
    for piece in re.split(r"\n{3,}(?=[^\n]{1,70}\n\n)", text):
        pending += ("\n\n" if pending else "") + piece.strip("\n")
        if len(pending) >= MIN_DOCUMENT:
            documents.append(pending)
            pending = ""
    return documents + [pending] if pending else documents


def join_lines(text: str) -> str:
    """Joins the hard-wrapped lines of each paragraph; verse quoted in prose keeps its lines."""
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", text):
        lines = paragraph.split("\n")
        wrapped = sum(len(line) >= 50 and not line.startswith("  ") for line in lines[:-1])
        if 2 * wrapped >= len(lines) - 1:
            paragraph = re.sub(r"(?<=[^\s.]) {2,}|(?<=[.?!\"']) {2,}", " ", " ".join(line.strip() for line in lines))
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def documents_of(name: str, text: str, rng: random.Random) -> list[str]:
    if name.startswith("speeches/"):  # one line is one paragraph
        return ["\n\n".join(line.strip() for line in text.split("\n") if line.strip())]
    book = name.removeprefix("prose/")
    parts = [re.sub(r"\n{3,}", "\n\n", chapter) for chapter in chapters(text)]
    if book.startswith(VERSE):
        return parts
    return [part if book != HELD_OUT and rng.randrange(RAW_SHARE) == 0 else join_lines(part) for part in parts]


def train_tokenizer(documents: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - 2, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    assert tokenizer.token_to_id("<|end_of_text|>") == EOS
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
            special_tokens=[("<|begin_of_text|>", BOS)]),
    ])
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
    return np.array([token for one in encoded for token in [*one.ids, EOS]], dtype=np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    train, held_out = [], []
    for name, text in read_corpus(HERE / "corpus.tar.xz").items():
        (held_out if name == f"prose/{HELD_OUT}" else train).extend(documents_of(name, text, rng))
    rng.shuffle(train)
    tokenizer = train_tokenizer(train)
    tokenizer.save(str(args.work / "tokenizer.json"))
    for name, documents in ("train", train), ("heldout", held_out):
        tokens = encode(tokenizer, documents)
        np.save(args.work / f"{name}.npy", tokens)
        print(f"{name}: {len(documents)} documents, {sum(map(len, documents))} characters, {len(tokens)} tokens")


if __name__ == "__main__":
    main()
