"""Wall time of `gander mutants score` in one process, on two Dask workers, and on two of which one is ended on the way.

    python benchmarks/campaign.py --only 'k_update.*' --only 'tokenizer.*'

The matrix must be the same to the last byte.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil  # comes with distributed

from gander.conformance.campaign import How
from gander.conformance.mutants import MUTANTS, TOKENIZERS
from gander.conformance.registry import matches
from gander.conformance.scoring import score
from gander.reports.mutants import matrix_as_json


def here(globs: Sequence[str]) -> str:
    """In this process alone."""
    chosen = [[mutant for mutant in catalogue if any(matches(mutant.id, glob) for glob in globs)]
              for catalogue in (MUTANTS, TOKENIZERS)]  # fmt: skip
    return matrix_as_json(score(*chosen, how=How(), progress=lambda done, total, id: None))


def on_dask(globs: Sequence[str], *, end_one: bool) -> tuple[str, bool]:
    """On two workers; one may be ended when the first result is in. The matrix, and whether one was."""
    command = [sys.executable, "-m", "gander", "mutants", "score", "--json", "--workers", "2"]
    for glob in globs:
        command += ["--only", glob]
    ended = False
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder, "done.jsonl")
        with subprocess.Popen([*command, "--resume", str(done)], stdout=subprocess.PIPE, text=True) as process:
            while end_one and not ended and process.poll() is None:
                time.sleep(0.05)
                if done.exists() and len(done.read_text().splitlines()) > 1:
                    workers = [each for each in psutil.Process(process.pid).children(recursive=True)
                               if "spawn_main" in " ".join(each.cmdline())]  # fmt: skip
                    workers[-1].kill()
                    ended = True
            out, _ = process.communicate()
    return out, ended


def main() -> None:
    """Three runs, and whether they agree."""
    parser = argparse.ArgumentParser(description="Wall time of a campaign, here and on two Dask workers.")
    parser.add_argument("--only", action="append", help="mutants, as of gander mutants score")
    globs = parser.parse_args().only or ["k_update.*", "tokenizer.*"]
    began = time.perf_counter()
    right = here(globs)
    print(f"one process             {time.perf_counter() - began:6.1f} s")
    for end_one in (False, True):
        began = time.perf_counter()
        found, ended = on_dask(globs, end_one=end_one)
        what = "two workers, one ended" if end_one else "two workers"
        print(f"{what:<22}  {time.perf_counter() - began:6.1f} s")
        if found.strip() != right.strip() or ended != end_one:
            raise SystemExit(f"{what}: " + ("no worker was ended in time" if ended != end_one else "another matrix"))
    print("the same matrix, byte for byte")


if __name__ == "__main__":
    main()
