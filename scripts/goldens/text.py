"""Results of the Hugging Face `tokenizers` library, which the tests of common/text must match.

A golden is one JSON object a line: the input ("text", or "base64" for bytes that are not UTF-8), "special" (whether
special tokens were added), "ids", and "decoded" (without the special tokens if "special") if that differs from the
input.
"""

import base64
import json
import random

import paths
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

DATA = paths.DATA / "text"
PROSE = DATA / "blake-poems.txt"

WHITE_SPACE = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x2010)]
WHITE_SPACE += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF]
DIGITS = [0x30, 0x660, 0x967, 0xB2, 0xBC, 0x2160, 0xFF11, 0x1D7D8]
CONTRACTIONS = ["'s", "'S", "'\u017f", "'ll", "'VE", "'re", "\u2019s", "'d", "'M"]
# Assigned after Unicode 14: an older regex library treats them as unassigned.
NEW_CHARACTERS = [0x31350, 0x2EBF0, 0x1E4D0, 0x11F50, 0x1FAE8, 0x10D4A, 0xA7CB, 0x897]
BYTES = [0xC0, 0xC2, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF, 0x80, 0xBF, 0xA0, 0x9F, 0x8F, 0x90]

# Every option of an added token, with neighbours that affect it.
ADDED_TOKEN_TEXTS = [
    "a <left>b", "a  \n\u3000<left>", "<left><left>", "x<left> <right>  y", "<right> \t\u2003z", "<right><right> ",
    "one <both> two", "  <both>  <both>  ", "<word>", "a<word>", "<word>b", "a <word> b", "\u0301<word>", "_<word>",
    "-<word>-", "<plain", "<plain>", "<plain><plain>er>", "<plain>er", "\u00e9<plain>\u00e9", "<bos>x<bos>", "<eos>",
    "<left<left>", "two words", " two words ", "two  words", "two\u00a0words",
]


def random_character(rng):
    kind = rng.random()
    if kind < 0.2:
        return chr(rng.choice(WHITE_SPACE))
    if kind < 0.4:
        return chr(rng.randrange(0x21, 0x7F))
    if kind < 0.45:
        return rng.choice(CONTRACTIONS)
    if kind < 0.5:
        return chr(rng.choice(DIGITS) + rng.randrange(3))
    if kind < 0.55:
        return chr(rng.choice(NEW_CHARACTERS))
    first, last = rng.choice([
        (0x300, 0x36F),  # combining
        (0x1F300, 0x1FAFF),  # emoji
        (0x590, 0x7FF),  # right to left
        (0x4E00, 0x9FFF),
        (0x80, 0x2FFF),
        (0xE000, 0x10FFFF),
    ])
    return chr(rng.randint(first, last))


def random_texts(rng, count, added):
    for _ in range(count):
        characters = [random_character(rng) for _ in range(rng.choice([1, 3, 10, 40]))]
        if added and rng.random() < 0.3:
            characters.insert(rng.randrange(len(characters) + 1), rng.choice(added))
        yield "".join(characters).encode()


def invalid_bytes(rng, count):
    for _ in range(count):
        data = bytearray()
        for _ in range(rng.choice([1, 2, 5, 15])):
            kind = rng.random()
            if kind < 0.25:
                data.append(rng.randrange(256))
            elif kind < 0.6:
                data.append(rng.choice(BYTES))
            elif kind < 0.8:
                character = rng.choice("\u00e9\u20ac\u4e2d\U0001F600").encode()
                data += character[:rng.randint(1, len(character))]
            else:
                data += b"ab c"[:rng.randrange(5)]
        yield bytes(data)


def inputs(tokenizer):
    rng = random.Random(20240607)
    prose = PROSE.read_bytes()
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    yield b""
    yield prose[:6000]
    for text in ["I'll say WE'LL, they'd've", "x  = 12345678 + 3.14;\n\n\tif (y):\r\n    return", "   a    b   "]:
        yield text.encode()
    yield from (text.encode() for text in ADDED_TOKEN_TEXTS)
    for text in added:
        yield f"before {text} after{text}{text}".encode()
    for _ in range(20):
        start = rng.randrange(len(prose) - 100)
        yield prose[start:start + rng.randrange(100)]
    yield from random_texts(rng, 120, added)
    yield from invalid_bytes(rng, 80)
    for character in ["a", " ", "\n", "1", "!", "\u00e9", "\U0001F600"]:
        yield (character * 300).encode()


def write_goldens(tokenizer_path, golden_path):
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    with open(golden_path, "w", encoding="ascii", newline="\n") as out:
        for number, data in enumerate(inputs(tokenizer)):
            text = data.decode("utf-8", errors="replace")
            special = number % 2 == 0
            ids = tokenizer.encode(text, add_special_tokens=special).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=special)
            if text.encode() == data:
                golden = {"text": text}
            else:
                golden = {"base64": base64.b64encode(data).decode()}
            golden |= {"special": special, "ids": ids}
            if decoded != text:
                golden["decoded"] = decoded
            out.write(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{golden_path}: {number + 1} goldens, {golden_path.stat().st_size} bytes")


def train_bpe(tokenizer, vocabulary_size, special_tokens):
    trainer = trainers.BpeTrainer(vocab_size=vocabulary_size, special_tokens=special_tokens, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train([str(PROSE)], trainer)
    tokenizer.decoder = decoders.ByteLevel()


def train_gpt2_small():
    """GPT-2's regex and nothing else."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train_bpe(tokenizer, 1000, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def train_options():
    """Every supported option: added tokens of all kinds, digits, splits, prefix space, BOS and EOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("--", behavior="removed"),
        pre_tokenizers.Split(Regex(r"[\p{Lu}\p{Lt}]?\p{Ll}+|\p{P}\S*|\d|\n$|[\u0391-\u03a9]"), behavior="isolated"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
    ])
    train_bpe(tokenizer, 320, ["<bos>", "<eos>"])
    tokenizer.add_tokens([
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=True),
        AddedToken("<both>", lstrip=True, rstrip=True, special=True),
        AddedToken("<word>", single_word=True, normalized=False),
        AddedToken("<plain>", normalized=True),
        AddedToken("<plain>er", normalized=True),
        AddedToken("two words", normalized=False),
    ])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<bos> $A <eos>",
                                      special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<bos>", "<eos>")]),
    ])
    return tokenizer


def train_qwen():
    """As Qwen 2 to 3: composed characters, single digits, ChatML's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    train_bpe(tokenizer, 600, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("caf\u00e9", normalized=True)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def with_sentencepieces_ids(trained, with_bytes):
    """The model of a trained tokenizer with special tokens first, then bytes, then the rest."""
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256) if with_bytes]
    tokens += sorted(set(model["vocab"]) - set(tokens), key=model["vocab"].get)
    return models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(merge) for merge in model["merges"]],
                      unk_token="<unk>", fuse_unk=True, byte_fallback=with_bytes)


def train_sentencepiece(vocabulary_size, with_bytes=True):
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trained.train([str(PROSE)], trainers.BpeTrainer(vocab_size=vocabulary_size, special_tokens=["<unk>"],
                                                    show_progress=False))
    return Tokenizer(with_sentencepieces_ids(trained, with_bytes))


def finish_sentencepiece(tokenizer, *more):
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *more])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("[INST]", special=True, normalized=False), AddedToken("<word>", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def train_mistral():
    """As Mistral 7B v0.1 and Llama 2: a symbol replaces spaces, and is put before each stretch of text too."""
    tokenizer = train_sentencepiece(500)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return finish_sentencepiece(tokenizer, decoders.Strip(content=" ", left=1, right=0))


def train_metaspace():
    """As later Mistral models: the symbol is put before the first stretch only."""
    tokenizer = train_sentencepiece(500)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return finish_sentencepiece(tokenizer, decoders.Strip(content=" ", left=1, right=0))


def train_gemma():
    """As Gemma: the symbol replaces spaces, and nothing is put before a text."""
    tokenizer = train_sentencepiece(400)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    return finish_sentencepiece(tokenizer)


def train_unknown():
    """Without tokens for bytes: text that has no token is unknown."""
    tokenizer = train_sentencepiece(300, with_bytes=False)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    return finish_sentencepiece(tokenizer)


def train():
    for name, trained in (("gpt2-small", train_gpt2_small()), ("options", train_options()), ("qwen", train_qwen()),
                          ("mistral", train_mistral()), ("metaspace", train_metaspace()), ("gemma", train_gemma()),
                          ("unknown", train_unknown())):
        path = DATA / f"{name}.tokenizer.json"
        trained.save(str(path), pretty=False)
        print(f"{path}: {path.stat().st_size} bytes")
        write_goldens(path, DATA / f"{name}.golden.jsonl")
