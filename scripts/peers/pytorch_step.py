#!/usr/bin/env python3
"""Times whole training steps of Lockstep's model in PyTorch on one GPU, beside
`train`: torch.compile, scaled-dot-product attention, fused AdamW, and bf16
autocast over fp32 weights, or fp32 throughout. Prints the median step, tokens/s
and the peak of allocated memory."""

from __future__ import annotations

import contextlib

import timing  # which says it where there is no PyTorch
import pytorch_model as model
import torch
import torch.nn.functional as F

SIZES = {  # d_model, d_ff, layers, heads
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl": (2560, 10240, 32, 32),
}
WARM_UP = 5


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
           ) -> torch.Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    pairs = torch.stack((cos * even - sin * odd, sin * even + cos * odd), -1)
    return pairs.flatten(-2).to(x.dtype)


def loss(weights: dict[str, torch.Tensor], shape: model.Shape,
         angles: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor
         ) -> torch.Tensor:
    """As pytorch_model.logits, in real numbers, which compile to fewer
    kernels."""
    cos, sin = angles.cos(), angles.sin()
    x = F.embedding(inputs, weights["token_embeddings.weight"])
    for i in range(shape.num_layers):
        block = f"layers.{i}."

        def linear(y: torch.Tensor, name: str, block: str = block
                   ) -> torch.Tensor:
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


def main() -> None:
    a = timing.parse_arguments(__doc__, {
        "model-size": {"choices": list(SIZES), "default": "small"},
        "precision": {"choices": ("bf16", "fp32"), "default": "bf16"},
        "batch-size": {"default": 4}, "context-length": {"default": 1024},
        "vocab-size": {"default": 10000}, "steps": {"default": 20},
        "grad-clip": {"type": float, "default": 0.0, "metavar": "NORM",
                      "help": "0: no clipping, which saves PyTorch a pass"}})

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

    def step() -> None:
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

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    ms = timing.median_ms(step, a.steps)
    tokens = a.batch_size * a.context_length
    print(f"PyTorch {torch.__version__} {a.model_size} {a.precision} batch "
          f"{a.batch_size}: step {ms:.2f} ms, {tokens / ms * 1000:.0f} "
          f"tokens/s, peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
