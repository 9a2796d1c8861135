"""The model that Lockstep trains, in PyTorch: for reference values and for
comparing speed. Weights are a dict of tensors by state-dict name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass
class Shape:
    vocab_size: int
    context_length: int
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


def weight_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every weight's shape by name, in state-dict order."""
    d, f, v = shape.d_model, shape.d_ff, shape.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embeddings.weight": (v, d)}
    for i in range(shape.num_layers):
        block = f"layers.{i}."
        shapes[block + "ln1.weight"] = (d,)
        for name in ("q", "k", "v", "output"):
            shapes[f"{block}attn.{name}_proj.weight"] = (d, d)
        shapes[block + "ln2.weight"] = (d,)
        shapes[block + "ffn.w1.weight"] = (f, d)
        shapes[block + "ffn.w2.weight"] = (d, f)
        shapes[block + "ffn.w3.weight"] = (f, d)
    shapes["ln_final.weight"] = (d,)
    shapes["lm_head.weight"] = (v, d)
    return shapes


def initial_weights(shape: Shape, dtype: torch.dtype = torch.float32
                    ) -> dict[str, torch.Tensor]:
    weights = {}
    for name, size in weight_shapes(shape).items():
        if len(size) == 1:
            weights[name] = torch.ones(size, dtype=dtype)
            continue
        std = 1.0 if name.startswith("token") else math.sqrt(2 / sum(size))
        weights[name] = torch.empty(size, dtype=dtype)
        torch.nn.init.trunc_normal_(
            weights[name], std=std, a=-3 * std, b=3 * std
        )
    return weights


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float
            ) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rope_angles(length: int, head_dim: int, theta: float) -> torch.Tensor:
    """[T, D/2]: position times the frequency of each pair."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    positions = torch.arange(length, dtype=torch.float64)
    return torch.outer(positions, theta**-exponents)


def rotate_pairs(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [..., T, D], adjacent elements (2i, 2i+1) as one complex number."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    turn = torch.polar(torch.ones_like(angles), angles).to(pairs.dtype)
    return torch.view_as_real(pairs * turn).flatten(-2)


def logits(weights: dict[str, torch.Tensor], shape: Shape,
           tokens: torch.Tensor) -> torch.Tensor:
    """[B, T, V] for tokens [B, T]."""
    length = tokens.shape[1]
    angles = rope_angles(
        length, shape.d_model // shape.num_heads, shape.rope_theta
    )

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return rmsnorm(x, weights[name], shape.norm_eps)

    def heads(x: torch.Tensor, name: str) -> torch.Tensor:
        y = F.linear(x, weights[name])
        return y.unflatten(-1, (shape.num_heads, -1)).transpose(1, 2)

    x = F.embedding(tokens, weights["token_embeddings.weight"])
    for i in range(shape.num_layers):
        block = f"layers.{i}."
        h = norm(x, block + "ln1.weight")
        q, k, v = (heads(h, f"{block}attn.{n}_proj.weight") for n in "qkv")
        o = F.scaled_dot_product_attention(
            rotate_pairs(q, angles), rotate_pairs(k, angles), v, is_causal=True
        )
        o = o.transpose(1, 2).flatten(-2)
        x = x + F.linear(o, weights[block + "attn.output_proj.weight"])

        h = norm(x, block + "ln2.weight")
        gate = F.linear(h, weights[block + "ffn.w1.weight"])
        up = F.linear(h, weights[block + "ffn.w3.weight"])
        x = x + F.linear(F.silu(gate) * up, weights[block + "ffn.w2.weight"])
    return F.linear(norm(x, "ln_final.weight"), weights["lm_head.weight"])


def mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def learning_rate(step: int, peak: float, lowest: float, warmup_steps: int,
                  decay_steps: int) -> float:
    """Of step 1, 2, …: linear warm-up, cosine decay, then constant."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    if step >= decay_steps:
        return lowest
    progress = (step - warmup_steps) / (decay_steps - warmup_steps)
    return lowest + (peak - lowest) * (1 + math.cos(math.pi * progress)) / 2
