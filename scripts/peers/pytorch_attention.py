#!/usr/bin/env python3
"""Times causal scaled-dot-product attention in bf16 in PyTorch, by cuDNN's and
by FlashAttention-2's kernels, beside `bench attention`: medians of the forward
and the backward pass, FLOPs counted as docs/benchmarks.md says. Also the speed
of an 8192³ product and of a copy, which say what the GPU gives at best."""

import argparse
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = (
    "4,12,1024,64", "4,16,1024,64", "4,20,1024,64", "4,32,1024,80",
    "4,16,4096,128", "1,32,16384,128", "1,32,32768,128", "1,16,16384,64",
)
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash2": SDPBackend.FLASH_ATTENTION,
}


def median_ms(work, warmup, iterations):
    """Of runs between two events each, with the cache emptied before them."""
    cache = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    for _ in range(warmup):
        work()
    runs = []
    for _ in range(iterations):
        cache.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        runs.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(b.elapsed_time(e) for b, e in runs)


def attention_ms(shape, backend, warmup, iterations):
    """Forward and backward."""
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16,
                    requires_grad=True)
        for _ in range(3)
    )
    dout = torch.randn_like(q)

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with sdpa_kernel(backend):
        with torch.no_grad():
            forward_ms = median_ms(forward, warmup, iterations)
        out = forward()
        backward_ms = median_ms(
            lambda: torch.autograd.grad(out, (q, k, v), dout,
                                        retain_graph=True),
            warmup, iterations)
    return forward_ms, backward_ms


def ceilings(warmup, iterations):
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(a)
    ms = median_ms(lambda: a @ b, warmup, iterations)
    print(f"product of 8192³, bf16: {2 * 8192**3 / ms / 1e9:.0f} TFLOP/s")
    x = torch.empty(2**30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    ms = median_ms(lambda: y.copy_(x), warmup, iterations)
    print(f"copy: {4 * x.numel() / ms / 1e6:.0f} GB/s")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES,
                        metavar="B,H,T,D")
    parser.add_argument("--warmup-iterations", type=int, default=5, metavar="N")
    parser.add_argument("--iterations", type=int, default=30, metavar="N")
    a = parser.parse_args()

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    ceilings(a.warmup_iterations, a.iterations)
    for text in a.shapes:
        batch, heads, tokens, head_dim = shape = tuple(
            int(n) for n in text.split(","))
        flops = 2 * batch * heads * tokens * tokens * head_dim
        for name, backend in BACKENDS.items():
            forward, backward = attention_ms(
                shape, backend, a.warmup_iterations, a.iterations)
            print(f"{name:6} {text:16} forward {forward:8.4f} ms "
                  f"{flops / forward / 1e9:4.0f} TFLOP/s   backward "
                  f"{backward:8.4f} ms {2.5 * flops / backward / 1e9:4.0f} "
                  "TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
