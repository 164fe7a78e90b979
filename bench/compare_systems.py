"""The systems that compare.py measures, with their modes. The figure of a mode is in tokens per second."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build/release/bin"
OUT = ROOT / "build/bench"
TEMPERATURES = (0.0, 1.0)
FORWARD = "forward pass alone"  # no sampling, no services
PLAIN = "plain"

# The result of one mode in one turn: its name, the temperature, and tokens per second after the first token.
Sample = tuple[str, float, float]


def chat_questions(each: int | None = None, file: Path = ROOT / "bench/questions.json", sets: list[str] | None = None) -> dict[str, list]:
    """Questions to a chat model by set: the first `each`, or all, of these sets or of all but the edits, whose answers are long."""
    return {name: questions[:each] for name, questions in json.loads(file.read_text()).items()
            if (name in sets if sets else name != "edits")}


class System(Protocol):
    """A system that takes turns. It is made before its first turn, and may fail there and in any turn."""

    name: str

    def __init__(self, options: argparse.Namespace, prompts: list[str]) -> None: ...

    def measure(self) -> Iterator[Sample]: ...


class Unavailable(Exception):
    """The reason why a system cannot take part."""


def machine() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return names[0] if names else "unknown"


def processors() -> int:
    return len(os.sched_getaffinity(0))


def leave_out(name: str, error: Exception) -> None:
    """Reports in one line why `name` takes no part. The traceback of an unexpected error goes to a log."""
    if isinstance(error, Unavailable):
        reason = str(error)
    else:
        log = OUT / f"compare-{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(traceback.format_exception(error)))
        said = (str(error).strip().splitlines() or ["no message"])[0]
        reason = f"{type(error).__name__}: {said} (log: {log})"
    print(f"compare: {name} is left out: {reason}", flush=True)


def run(command: list[str | Path], log: Path | None = None, **options) -> str:
    """Returns the output (stdout and stderr) of a command. If it fails, raises Unavailable with the last line."""
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    if log is not None:
        log.write_text(done.stdout)
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(f"{Path(command[0]).name} ended with {done.returncode}: {last}"
                          + (f" (log: {log})" if log is not None else ""))
    return done.stdout


def require_transformers() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except (ImportError, OSError) as error:
        raise Unavailable(f"this Python cannot import torch and transformers ({str(error).splitlines()[0]}); "
                          "install models/train/requirements.txt") from error


class Outrider:
    name = "outrider"

    def __init__(self, options: argparse.Namespace, prompts: list[str]) -> None:
        self.options, self.prompts = options, prompts
        for program in ("bench_pair", "bench_step"):
            if not (PROGRAMS / program).exists():
                raise Unavailable(f"no {PROGRAMS / program}: run make build")

    def measure(self) -> Iterator[Sample]:
        with tempfile.TemporaryDirectory() as folder:
            prompts, pair, step = (Path(folder) / name for name in ("prompts.json", "pair.json", "step.json"))
            prompts.write_text(json.dumps({"prose": {"prompts": self.prompts}}))
            run([PROGRAMS / "bench_pair", "--target-model", self.options.target, "--draft-model", self.options.draft,
                 "--dtype", "bfloat16", "--threads", str(self.options.threads), "--prompts", prompts, "--set", "prose",
                 "--repeats", "1", "--max-tokens", str(self.options.max_tokens), "--json", pair])
            run([PROGRAMS / "bench_step", self.options.target, "bfloat16", str(self.options.threads),
                 "--benchmark_filter=^rows:1/", f"--benchmark_out={step}", "--benchmark_out_format=json"])
            results, steps = json.loads(pair.read_text())["results"], json.loads(step.read_text())["benchmarks"]
        for result in results:
            for mode in result["modes"]:
                name = PLAIN if mode["mode"] == PLAIN else f"speculative, {mode['mode']}"
                yield name, result["temperature"], mode["tokens_per_second"]
        for temperature in TEMPERATURES:
            yield FORWARD, temperature, 1e6 / steps[0]["real_time"]


class Transformers:
    name = "transformers"
    CONTINUES = True  # past the end of a text, as the other systems do
    ASSISTANCE = {
        "assisted, as it comes": {},
        "assisted, K = 4": {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "constant",
                            "assistant_confidence_threshold": 0.0},
    }

    def __init__(self, options: argparse.Namespace, prompts: list[str]) -> None:
        require_transformers()
        import torch
        from transformers.generation.streamers import BaseStreamer
        from transformers.utils import logging
        torch.set_num_threads(options.threads)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.torch, self.options = torch, options
        self.target, self.draft = (self.load(model).eval() for model in self.models())
        for model in (self.target, self.draft):
            model.generation_config.pad_token_id = 0
            if self.CONTINUES:
                model.generation_config.eos_token_id = None
        self.default_assistance = self.draft.generation_config.to_dict()
        tokenizer = self.load_tokenizer()
        self.prompts = [self.encode(tokenizer, prompt) for prompt in prompts]

        class Clock(BaseStreamer):
            """Records when tokens arrive: first the prompt, then each new one."""

            def __init__(self) -> None:
                self.times: list[float] = []
                self.tokens: list[int] = []

            def put(self, value) -> None:
                self.times.append(time.perf_counter())
                self.tokens.append(value.numel())

            def end(self) -> None:
                pass

        self.clock = Clock
        self.rate(0.0, assistant_model=self.draft)  # warm-up

    def models(self) -> tuple[Path, Path]:
        return self.options.target, self.options.draft

    def load(self, model: Path):
        from transformers import AutoModelForCausalLM
        return AutoModelForCausalLM.from_pretrained(model, dtype=self.torch.bfloat16)

    def load_tokenizer(self):
        from transformers import AutoTokenizer
        return AutoTokenizer.from_pretrained(self.options.target)

    def encode(self, tokenizer, prompt: str):
        return tokenizer(prompt, return_tensors="pt")

    def rate(self, temperature: float, **assistance) -> float:
        tokens, seconds = 0, 0.0
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {
            "do_sample": False}
        for prompt in self.prompts:
            clock = self.clock()
            self.torch.manual_seed(1)
            with self.torch.inference_mode():
                self.target.generate(**prompt, max_new_tokens=self.options.max_tokens, streamer=clock, **assistance, **sampling)
            tokens += sum(clock.tokens[2:])
            seconds += clock.times[-1] - clock.times[1]
        return tokens / seconds

    def measure(self) -> Iterator[Sample]:
        for temperature in TEMPERATURES:
            yield PLAIN, temperature, self.rate(temperature)
            for name, settings in self.ASSISTANCE.items():
                self.draft.generation_config.update(**self.default_assistance | settings)
                yield name, temperature, self.rate(temperature, assistant_model=self.draft)


class LlamaTools:
    """llama.cpp's programs, built from the sources that scripts/sources.txt pins."""

    TOOLS = ("llama-bench", "llama-completion", "llama-speculative-simple")
    # Explicit, although most are defaults: an environment variable would switch GGML_NATIVE off.
    BUILD = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON",
             "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF")

    def __init__(self) -> None:
        self.folder = OUT / "llama.cpp"
        self.source = self.folder / "source"
        self.tools = self.folder / "build/bin"
        if not all((self.tools / tool).exists() for tool in self.TOOLS):
            self.build()

    def build(self) -> None:
        print(f"compare: building llama.cpp in {self.folder.relative_to(ROOT)}, once", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "build.log"
        if not self.source.exists():
            # As scripts/install does: in an isolated build pip would compile cmake and Cython first.
            run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
                 "--dest", self.folder, "-r", ROOT / "scripts/sources.txt"], log)
            unpacked = self.folder / "unpacked"  # renamed once it is complete
            shutil.rmtree(unpacked, ignore_errors=True)
            with tarfile.open(next(self.folder.glob("llama_cpp_python-*.tar.gz"))) as package:
                for member in package:
                    before, inside, name = member.name.partition("/")[2].partition("vendor/llama.cpp/")
                    if inside and not before:
                        member.name = name
                        package.extract(member, unpacked, filter="data")
            unpacked.rename(self.source)
        run(["cmake", "-S", self.source, "-B", self.folder / "build", *self.BUILD], log)
        run(["cmake", "--build", self.folder / "build", "-j", str(processors()), "--target", *self.TOOLS], log)


class LlamaCpp(LlamaTools):
    name = "llama.cpp"
    FLAGS = ["--ignore-eos"]
    SPECULATION = {
        **{f"speculative, K = {k}": ("--spec-type", "draft-simple", "--spec-draft-n-max", str(k)) for k in (2, 4, 8)},
        "speculative, K = 8, p >= .5": ("--spec-type", "draft-simple", "--spec-draft-n-max", "8",
                                        "--spec-draft-p-min", "0.5"),
        "speculative, n-gram": ("--spec-type", "ngram-cache"),
    }
    # The converter recognises pre-tokenizers by a hash of their output, and does not know this one. For a Llama model it
    # looks for SentencePiece first.
    CONVERT = ("import sys; sys.path[:0] = ['.', 'gguf-py']; from conversion.base import TextModel; "
               "TextModel.get_vocab_base_pre = lambda self, tokenizer: 'llama-bpe'; "
               "TextModel._set_vocab_sentencepiece = TextModel._set_vocab_gpt2; "
               "import convert_hf_to_gguf; convert_hf_to_gguf.main()")

    def __init__(self, options: argparse.Namespace, prompts: list[str]) -> None:
        require_transformers()  # for the converter
        super().__init__()
        self.options, self.prompts = options, prompts
        self.target, self.draft = (self.convert(Path(model)) for model in (options.target, options.draft))

    def convert(self, model: Path) -> Path:
        converted = self.folder / f"{model.name}.gguf"
        if not converted.exists() or converted.stat().st_mtime < (model / "model.safetensors").stat().st_mtime:
            run([sys.executable, "-c", self.CONVERT, model.resolve(), "--outtype", "bf16", "--outfile", converted],
                self.folder / "convert.log", cwd=self.source)
        return converted

    def rate(self, tool: str, arguments: list[str | Path], temperature: float,
             read: Callable[[str], tuple[float, float] | None]) -> float:
        """Tokens per second over the prompts; `read` extracts tokens and seconds from the tool's output."""
        tokens, seconds = 0.0, 0.0
        for prompt in self.prompts:
            command = [self.tools / tool, "-m", self.target, *arguments, "-p", prompt,
                       "-n", str(self.options.max_tokens), "-t", str(self.options.threads), "-c", "1024",
                       "--temp", str(temperature), "--samplers", "temperature", "--seed", "1", *self.FLAGS,
                       "--perf", "-lv", "4"]
            # On a busy machine a tool may end before the last lines of its log are written.
            found = next(filter(None, (read(run(command)) for _ in range(5))), None)
            if found is None:
                raise Unavailable(f"{tool} does not say how long it took")
            tokens, seconds = tokens + found[0], seconds + found[1]
        return tokens / seconds

    def measure(self) -> Iterator[Sample]:
        said = run([self.tools / "llama-bench", "-m", self.target, "-p", "0", "-n", "128", "-d", "256",
                    "-t", str(self.options.threads), "-r", "5", "-o", "json"])
        forward = json.loads(re.search(r"^\[.*^\]", said, re.M | re.S)[0])[0]["avg_ts"]
        for temperature in TEMPERATURES:
            yield FORWARD, temperature, forward
            yield PLAIN, temperature, self.rate("llama-completion", ["-no-cnv"], temperature, self.read_plain)
            for name, flags in self.SPECULATION.items():
                draft = ["-md", self.draft, "-td", str(self.options.threads)] if "draft-simple" in flags else []
                yield name, temperature, self.rate("llama-speculative-simple", [*draft, *flags], temperature,
                                                   self.read_speculative)

    @staticmethod
    def read_plain(said: str) -> tuple[float, float] | None:
        forward = re.search(r" eval time = +([\d.]+) ms / +(\d+) runs", said)
        sampling = re.search(r"sampling time = +([\d.]+) ms", said)
        return forward and sampling and (float(forward[2]), (float(forward[1]) + float(sampling[1])) / 1e3)

    @staticmethod
    def read_speculative(said: str) -> tuple[float, float] | None:
        decoded = re.search(r"decoded +(\d+) tokens in +([\d.]+) seconds", said)
        return decoded and (float(decoded[1]), float(decoded[2]))


class Vllm:
    """vLLM's build for CPUs, in its own environment, since it needs another torch."""

    name = "vLLM"
    REQUIREMENTS = ROOT / "bench/compare_vllm.txt"
    SPECULATION: dict[str, dict | None] = {
        PLAIN: None,
        **{f"speculative, K = {k}": {"method": "draft_model", "num_speculative_tokens": k} for k in (2, 4)},
        "speculative, n-gram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2,
                                "prompt_lookup_max": 4},
    }

    def __init__(self, options: argparse.Namespace, prompts: list[str]) -> None:
        self.options, self.prompts = options, prompts
        self.folder = OUT / "vllm"
        self.python = self.folder / "bin/python"
        self.modes = list(self.SPECULATION)
        installed, wanted = self.folder / "installed", self.REQUIREMENTS.read_text()
        if not installed.exists() or installed.read_text() != wanted:
            self.install()
            installed.write_text(wanted)

    def install(self) -> None:
        print(f"compare: installing vLLM in {self.folder.relative_to(ROOT)}, once, 5.4 GB", flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", self.folder])
        run([self.python, "-m", "pip", "install", "--no-deps", "-r", self.REQUIREMENTS], self.folder / "install.log")

    def environment(self, folder: Path) -> dict[str, str]:
        cores = sorted(os.sched_getaffinity(0))[:self.options.threads]
        return os.environ | {
            # By default vLLM leaves one core to its scheduling processes; here every system has the same number of threads.
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "LD_PRELOAD": str(self.folder / "lib/libiomp5.so"),  # as its documentation says
            "VLLM_CACHE_ROOT": str(self.folder / "cache"),  # compiled kernels
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache/inductor"),
            "TMPDIR": str(folder),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }

    def rates(self, mode: str) -> dict[str, float]:
        speculation = self.SPECULATION[mode]
        if speculation is not None and speculation["method"] == "draft_model":
            speculation = speculation | {"model": str(self.options.draft)}
        with tempfile.TemporaryDirectory() as folder:
            prompts, rates = (Path(folder) / name for name in ("prompts.json", "rates.json"))
            prompts.write_text(json.dumps(self.prompts))
            command = [self.python, ROOT / "bench/compare_vllm.py", "--target", self.options.target,
                       "--prompts", prompts, "--max-tokens", str(self.options.max_tokens), "--json", rates,
                       "--temperatures", *map(str, TEMPERATURES)]
            if speculation is not None:
                command += ["--speculation", json.dumps(speculation)]
            run(command, self.folder / f"{mode}.log", env=self.environment(Path(folder)))
            return json.loads(rates.read_text())

    def measure(self) -> Iterator[Sample]:
        for mode in list(self.modes):
            try:
                rates = self.rates(mode)
            except Unavailable as reason:
                if mode == PLAIN:
                    raise
                leave_out(f"{self.name}, {mode}", reason)
                self.modes.remove(mode)
                continue
            for temperature in TEMPERATURES:
                yield mode, temperature, rates[str(temperature)]
