#!/usr/bin/env python3
"""Times whole training steps of Lockstep's model in PyTorch on one GPU, beside
`train`: torch.compile, scaled-dot-product attention, fused AdamW, and bf16
autocast over fp32 weights, or fp32 throughout. Prints the median step, tokens/s
and the peak of allocated memory."""

import argparse
import contextlib
import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import pytorch_model as model  # noqa: E402

SIZES = {  # d_model, d_ff, layers, heads
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl": (2560, 10240, 32, 32),
}
WARM_UP = 5


def norm(x, weight, eps):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    pairs = torch.stack((cos * even - sin * odd, sin * even + cos * odd), -1)
    return pairs.flatten(-2).to(x.dtype)


def loss(weights, shape, angles, inputs, targets):
    """As pytorch_model.logits, in real numbers, which compile to fewer
    kernels."""
    cos, sin = angles.cos(), angles.sin()
    x = F.embedding(inputs, weights["token_embeddings.weight"])
    for i in range(shape.num_layers):
        block = f"layers.{i}."

        def linear(y, name, block=block):
            return F.linear(y, weights[f"{block}{name}.weight"])

        h = norm(x, weights[block + "ln1.weight"], shape.norm_eps)
        q, k, v = (
            linear(h, f"attn.{n}_proj").unflatten(-1, (shape.num_heads, -1))
            .transpose(1, 2) for n in "qkv"
        )
        o = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + linear(o.transpose(1, 2).flatten(-2), "attn.output_proj")
        h = norm(x, weights[block + "ln2.weight"], shape.norm_eps)
        x = x + linear(F.silu(linear(h, "ffn.w1")) * linear(h, "ffn.w3"),
                       "ffn.w2")
    x = norm(x, weights["ln_final.weight"], shape.norm_eps)
    logits = F.linear(x, weights["lm_head.weight"])
    return model.mean_loss(logits.float(), targets)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model-size", choices=SIZES, default="small")
    parser.add_argument("--precision", choices=("bf16", "fp32"),
                        default="bf16")
    parser.add_argument("--batch-size", type=int, default=4, metavar="N")
    parser.add_argument("--context-length", type=int, default=1024,
                        metavar="N")
    parser.add_argument("--vocab-size", type=int, default=10000, metavar="N")
    parser.add_argument("--steps", type=int, default=20, metavar="N")
    parser.add_argument("--grad-clip", type=float, default=0, metavar="NORM",
                        help="0: no clipping, which saves PyTorch a pass")
    a = parser.parse_args()

    d_model, d_ff, layers, heads = SIZES[a.model_size]
    shape = model.Shape(a.vocab_size, a.context_length, d_model, d_ff, layers,
                        heads)
    torch.manual_seed(1)
    weights = {name: weight.cuda().requires_grad_()
               for name, weight in model.initial_weights(shape).items()}
    angles = model.rope_angles(
        a.context_length, d_model // heads, shape.rope_theta).float().cuda()
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-4, fused=True)
    compiled = torch.compile(loss)
    precision = (torch.autocast("cuda", torch.bfloat16)
                 if a.precision == "bf16" else contextlib.nullcontext())

    def step():
        tokens = torch.randint(a.vocab_size,
                               (2, a.batch_size, a.context_length),
                               device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with precision:
            value = compiled(weights, shape, angles, tokens[0], tokens[1])
        value.backward()
        if a.grad_clip > 0:
            torch.nn.utils.clip_grad_norm_(weights.values(), a.grad_clip)
        optimizer.step()

    events = []
    for i in range(WARM_UP + a.steps):
        if i == WARM_UP:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    ms = statistics.median(b.elapsed_time(e) for b, e in events[WARM_UP:])
    tokens = a.batch_size * a.context_length
    print(f"PyTorch {torch.__version__} {a.model_size} {a.precision} batch "
          f"{a.batch_size}: step {ms:.2f} ms, {tokens / ms * 1000:.0f} "
          f"tokens/s, peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
