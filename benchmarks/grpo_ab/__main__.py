"""GRPO with and without a gate, in miniature, on two cores.

    python -m benchmarks.grpo_ab [--smoke] [--out FOLDER] [--processes N]

A small transformer imitates a demonstrator that is careless in known places; then it learns by GRPO in the
household world: four arms, paired seeds, each with a starting policy and prompts of its own. Needs torch,
beside the package's `analysis` extra. Writes results.json, a table and figures into the folder. Everything in
`setting.py` was fixed before the first seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.grpo_ab.report import report
from benchmarks.grpo_ab.seeds import run_seed
from benchmarks.grpo_ab.setting import FULL, SMOKE
from rich.progress import Progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one seed, a few updates, about two minutes")
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_ab"), help="where results go")
    parser.add_argument("--processes", type=int, default=2, help="seeds run side by side")
    options = parser.parse_args()
    setting = SMOKE if options.smoke else FULL
    options.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    work = partial(run_seed, setting=setting, out=options.out)
    results = []
    with Progress(disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("seeds", total=len(setting.seeds))
        with multiprocessing.get_context("spawn").Pool(min(options.processes, len(setting.seeds))) as pool:
            for result in pool.imap(work, setting.seeds):
                results.append(result)
                progress.advance(bar)
    document = {
        "setting": asdict(setting),
        "minutes": (time.monotonic() - begun) / 60,
        "seeds": results,
    }
    (options.out / "results.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(report(document, options.out))


if __name__ == "__main__":
    main()
