"""Hashes of the results of `tokenizers` on random texts with Llama 3's vocabulary, for tests/unit/gguf_tokenizer_test.cc.

The vocabulary is that of a GGUF file in llama.cpp's sources; texts are split as in Llama 3's tokenizer.json.
"""

import random
import struct

import paths
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
NORMAL = 1

# The same as in the test.
LENGTHS = [1, 4, 16, 48]
PIECES = ["'s", "'LL", "'ve", "'\u017f", " ", "  ", "\n", "\r\n", "\t", " \n", "\u0085", "\u00a0", "\u180e", "\u200d",
          "\u3000", "\ufe0f", "\u0301", "123", "4567", ".", "...", "!", '"', "the", " and", "Hello", " world", "ing", "_",
          "<|", "|>", "<|eot_id|>", "<|begin_of_text|>"]
RANGES = [(0x21, 0x7E), (0x41, 0x7A), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x7FF), (0x900, 0x1FFF), (0x2000, 0x2FFF),
          (0x3040, 0x9FFF), (0xAC00, 0xD7A3), (0x10000, 0x10FFFF)]


def gguf_metadata(path):
    """Reads a GGUF file's metadata, as gguf.md of https://github.com/ggml-org/ggml describes it."""
    data = path.read_bytes()
    formats = dict(enumerate(["B", "b", "H", "h", "I", "i", "f", "?"])) | {10: "Q", 11: "q", 12: "d"}
    offset = 24

    def number(form):
        nonlocal offset
        offset += struct.calcsize("<" + form)
        return struct.unpack_from("<" + form, data, offset - struct.calcsize("<" + form))[0]

    def value(kind):
        nonlocal offset
        if kind == 8:
            length = number("Q")
            offset += length
            return data[offset - length:offset].decode()
        if kind == 9:
            element = number("I")
            return [value(element) for _ in range(number("Q"))]
        return number(formats[kind])

    return {value(8): value(number("I")) for _ in range(struct.unpack_from("<Q", data, 16)[0])}


def llama3(metadata):
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == NORMAL}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[len(vocab):]])
    assert tokenizer.get_vocab_size() == len(tokens)
    bos = metadata["tokenizer.ggml.bos_token_id"]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)])
    return tokenizer


def mt19937(seed):
    """std::mt19937: Python's generator, seeded in another way."""
    state = [seed]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    return lambda: generator.getrandbits(32)


def texts(count):
    draw = mt19937(3)

    def pick(choices):
        return choices[draw() % len(choices)]

    for _ in range(count):
        text = []
        for _ in range(pick(LENGTHS)):
            if draw() % 2 == 0:
                text.append(pick(PIECES))
            else:
                first, last = pick(RANGES)
                text.append(chr(first + draw() % (last - first + 1)))
        yield "".join(text)


def hash_of(encodings):
    value = 0xCBF29CE484222325
    for encoding in encodings:
        for number in (*encoding.ids, 0xFFFFFFFF):
            value = (value ^ number) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:x}"


def main(gguf):
    tokenizer = llama3(gguf_metadata(gguf))
    prose = (paths.DATA / "text" / "blake-poems.txt").read_text(encoding="utf-8")
    hashes = [hash_of([tokenizer.encode(prose)])]
    every = list(texts(100_000))
    hashes += [hash_of(tokenizer.encode_batch(every[i:i + 1000])) for i in range(0, len(every), 1000)]
    out = paths.DATA / "text" / "llama3.hashes"
    out.write_text("\n".join(hashes) + "\n", encoding="ascii")
    print(f"{out}: {len(hashes)} hashes of {len(every)} texts and {len(prose)} characters of prose")
