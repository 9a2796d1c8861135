#!/usr/bin/env python3
"""Times causal scaled-dot-product attention in bf16 in PyTorch, by cuDNN's and
by FlashAttention-2's kernels, beside `bench attention`: medians of the forward
and the backward pass, FLOPs counted as docs/benchmarks.md says. Also the speed
of an 8192³ product and of a copy, which say what the GPU gives at best."""

from __future__ import annotations

from typing import Callable

import timing  # which says it where there is no PyTorch
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = (  # batch, heads, tokens, head dim
    (4, 12, 1024, 64), (4, 16, 1024, 64), (4, 20, 1024, 64),
    (4, 32, 1024, 80), (4, 16, 4096, 128), (1, 32, 16384, 128),
    (1, 32, 32768, 128), (1, 16, 16384, 64))
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash2": SDPBackend.FLASH_ATTENTION,
}


class Clock:
    """Medians after a warm-up, with the cache emptied before each run."""

    def __init__(self, warmup: int, iterations: int) -> None:
        self.warmup = warmup
        self.iterations = iterations
        self.cache = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def ms(self, work: Callable[[], object]) -> float:
        for _ in range(self.warmup):
            work()
        return timing.median_ms(work, self.iterations,
                                before=self.cache.zero_)


def attention_ms(shape: tuple[int, ...], backend: SDPBackend, clock: Clock
                 ) -> tuple[float, float]:
    """Forward and backward."""
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16,
                    requires_grad=True)
        for _ in range(3)
    )
    dout = torch.randn_like(q)

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with sdpa_kernel(backend):
        with torch.no_grad():
            forward_ms = clock.ms(forward)
        out = forward()
        backward_ms = clock.ms(
            lambda: torch.autograd.grad(out, (q, k, v), dout,
                                        retain_graph=True))
    return forward_ms, backward_ms


def ceilings(clock: Clock) -> None:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(a)
    ms = clock.ms(lambda: a @ b)
    print(f"product of 8192³, bf16: {2 * 8192**3 / ms / 1e9:.0f} TFLOP/s")
    x = torch.empty(2**30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    ms = clock.ms(lambda: y.copy_(x))
    print(f"copy: {4 * x.numel() / ms / 1e6:.0f} GB/s")


def shape_of(text: str) -> tuple[int, ...]:
    """Of "B,H,T,D"."""
    shape = tuple(int(part) for part in text.split(","))
    if len(shape) != 4 or min(shape) < 1:
        raise ValueError
    return shape


def main() -> None:
    a = timing.parse_arguments(__doc__, {
        "shapes": {"nargs": "+", "type": shape_of, "metavar": "B,H,T,D",
                   "default": SHAPES},
        "warmup-iterations": {"default": 5}, "iterations": {"default": 30}})
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    clock = Clock(a.warmup_iterations, a.iterations)
    ceilings(clock)
    for shape in a.shapes:
        batch, heads, tokens, head_dim = shape
        text = ",".join(map(str, shape))
        flops = 2 * batch * heads * tokens * tokens * head_dim
        for name, backend in BACKENDS.items():
            forward, backward = attention_ms(shape, backend, clock)
            print(f"{name:6} {text:16} forward {forward:8.4f} ms "
                  f"{flops / forward / 1e9:4.0f} TFLOP/s   backward "
                  f"{backward:8.4f} ms {2.5 * flops / backward / 1e9:4.0f} "
                  "TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
