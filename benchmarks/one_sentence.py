"""One sentence from the shell: seconds and memory of the process, in turns with other programs.

python benchmarks/one_sentence.py RUN SENTENCE [--rounds 10]

The vocabulary must be one of SentencePiece. CTranslate2 loads the export of the run in a script of
its own; `import torch` translates nothing.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

CT2 = """
import sys, ctranslate2, sentencepiece
folder, sentence = sys.argv[1:]
tokenizer = sentencepiece.SentencePieceProcessor(f"{folder}/tokenizer.model")
translator = ctranslate2.Translator(folder, compute_type="int8", intra_threads=1)
pieces = tokenizer.encode(sentence, out_type=str)
print(tokenizer.decode(translator.translate_batch([pieces], beam_size=1)[0].hypotheses[0]))
"""


def measure(command: list[str]) -> tuple[float, float]:
    """Return seconds and MB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("sentence")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        export = ["export", given.run, "--format", "ctranslate2", "--output", f"{folder}/ct2"]
        subprocess.run([sys.executable, "-m", "seq2seq_cli", *export], check=True)
        ours = [sys.executable, "-m", "seq2seq_cli", "translate", given.run, given.sentence]
        commands = {
            "ours": ours,
            "ours, --beam-size 5": [*ours, "--beam-size", "5"],
            "ours, sampling, with PyTorch": [*ours, "--sampling"],
            "CTranslate2's package": [sys.executable, "-c", CT2, f"{folder}/ct2", given.sentence],
            "import torch": [sys.executable, "-c", "import torch"],
        }
        found = {name: [measure(command)] for name, command in commands.items()}  # reads the files
        for _ in range(given.rounds):
            for name, command in commands.items():
                found[name].append(measure(command))
    print("| | seconds, median (min to max) | MB |\n|---|--:|--:|")
    for name, measured in found.items():
        seconds, memory = zip(*measured[1:], strict=True)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"| {name} | {statistics.median(seconds):.2f} ({spread}) | {max(memory):.0f} |")


if __name__ == "__main__":
    main()
