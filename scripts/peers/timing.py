"""What the comparisons on GPUs share: their command line and their clock."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import lockstep  # noqa: E402

lockstep.use_an_interpreter_with("torch")

import torch  # noqa: E402

from lockstep import launch  # noqa: E402


def parse_arguments(description: str | None,
                    options: dict[str, dict[str, object]]
                    ) -> argparse.Namespace:
    """`options` by name, as argparse takes them; an int is a count."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, how in options.items():
        if isinstance(how["default"], int):
            how = {"type": launch.count, "metavar": "N", **how}
        parser.add_argument(f"--{name}", **how)  # type: ignore[arg-type]
    a = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here")
    return a


def median_ms(work: Callable[[], object], iterations: int,
              before: Callable[[], object] = lambda: None) -> float:
    """Of runs between two events each, which nothing waits for; `before` comes
    ahead of each and is not timed."""
    runs = []
    for _ in range(iterations):
        before()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        runs.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(b.elapsed_time(e) for b, e in runs)
