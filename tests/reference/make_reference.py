#!/usr/bin/env python3
"""Writes, or checks, float64 results that the tests compare with.

  make_reference.py OUT.h5         writes a new file, from other random numbers
  make_reference.py --check FILE   recomputes every result of FILE from the
                                   inputs in it; exit code 1 if one differs

Layout: attention/CASE/{q,k,v,do,o,lse,dq,dk,dv}, ops/OP/…, and per training
case its settings as attributes, tokens, initial and final weights, loss,
grad_norm and lr of each step, logits and gradients of the first. Inputs are
exact in float32. Global batch k of a run has rows tokens[r·T … r·T+T), with
r counting on over all steps; targets are one token later.

Needs PyTorch and h5py.
"""

import argparse
import sys
from pathlib import Path

import h5py
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import pytorch_model as model  # noqa: E402

F64 = torch.float64

# name: batch, heads, query and key length, head dimension, causal
ATTENTION = {
    f"d{d}_n{n}_{'causal' if causal else 'full'}": (
        1, 2 if d < 64 else 1, n, n, d, causal)
    for d in (16, 32, 64, 80, 128)
    for n, causal in ((128, False), (130, True), (77, True))
}
ATTENTION["cross_d64"] = (1, 1, 50, 90, 64, False)
ATTENTION["peaky_d64"] = (1, 1, 96, 96, 64, True)

COMMON = dict(adam_eps=1e-8, beta1=0.9, beta2=0.95, clip=1.0, norm_eps=1e-5,
              rope_theta=10000.0, warmup_steps=3, weight_decay=0.1)
TRAINING = {
    "test": dict(COMMON, vocab_size=97, context_length=16, d_model=16, d_ff=24,
                 num_layers=2, num_heads=2, global_batch=8, steps=12,
                 cosine_steps=12, lr_max=1e-2, lr_min=1e-3),
    "odd": dict(COMMON, vocab_size=127, context_length=33, d_model=48, d_ff=80,
                num_layers=3, num_heads=3, global_batch=8, steps=10,
                cosine_steps=10, lr_max=1e-2, lr_min=1e-3),
    "head80": dict(COMMON, vocab_size=101, context_length=70, d_model=80,
                   d_ff=112, num_layers=2, num_heads=1, global_batch=4,
                   steps=6, cosine_steps=6, lr_max=3e-3, lr_min=3e-4),
}


def random(*shape, scale=1.0):
    """Normal numbers that are exact in float32."""
    return (scale * torch.randn(shape)).float().to(F64)


def leaf(x):
    return x.clone().requires_grad_()


def attention_results(causal, q, k, v, do):
    q, k, v = leaf(q), leaf(k), leaf(v)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    o = scores.softmax(-1) @ v
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    return dict(o=o, lse=scores.logsumexp(-1), dq=dq, dk=dk, dv=dv)


def rmsnorm_results(x, w, dy):
    x, w = leaf(x), leaf(w)
    y = model.rmsnorm(x, w, 1e-5)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    return dict(y=y, dx=dx, dw=dw)


def rope_results(x):
    angles = model.rope_angles(x.shape[-2], x.shape[-1], 10000.0)
    return dict(y=model.rotate_pairs(x, angles))


def swiglu_results(gate, up, dy):
    gate, up = leaf(gate), leaf(up)
    y = torch.nn.functional.silu(gate) * up
    dgate, dup = torch.autograd.grad(y, (gate, up), dy)
    return dict(y=y, dgate=dgate, dup=dup)


def cross_entropy_results(logits, targets):
    logits = leaf(logits)
    loss = model.mean_loss(logits, targets)
    (dlogits,) = torch.autograd.grad(loss, logits)
    return dict(loss=loss, dlogits=dlogits)


def weighted_sum_results(x, w, dy):
    x, w = leaf(x), leaf(w)
    y = x @ w
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    return dict(y=y, dx=dx, dw=dw)


def training_results(s, initial, tokens):
    """s: the settings; initial: weights by name; tokens [n]."""
    shape = model.Shape(**{name: s[name] for name in (
        "vocab_size", "context_length", "d_model", "d_ff", "num_layers",
        "num_heads", "rope_theta", "norm_eps")})
    weights = {name: leaf(initial[name]) for name in model.weight_shapes(shape)}
    optimizer = torch.optim.AdamW(
        weights.values(), betas=(s["beta1"], s["beta2"]), eps=s["adam_eps"],
        weight_decay=s["weight_decay"])
    batch, length = s["global_batch"], s["context_length"]
    results = dict(loss=[], grad_norm=[], lr=[])

    for step in range(1, s["steps"] + 1):
        rate = model.learning_rate(step, s["lr_max"], s["lr_min"],
                                   s["warmup_steps"], s["cosine_steps"])
        begin = (step - 1) * batch * length
        inputs = tokens[begin : begin + batch * length].view(batch, length)
        targets = tokens[begin + 1 : begin + batch * length + 1]
        logits = model.logits(weights, shape, inputs)
        loss = model.mean_loss(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        if step == 1:
            results["step1/logits"] = logits
            for name, weight in weights.items():
                results["step1/gradients/" + name] = weight.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), s["clip"])
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        results["loss"].append(loss.item())
        results["grad_norm"].append(norm.item())
        results["lr"].append(rate)

    for name in ("loss", "grad_norm", "lr"):
        results[name] = torch.tensor(results[name], dtype=F64)
    results |= {"final/" + name: weight for name, weight in weights.items()}
    return results


OPS = {
    "rmsnorm": (rmsnorm_results, ("x", "w", "dy")),
    "rope": (rope_results, ("x",)),
    "swiglu": (swiglu_results, ("gate", "up", "dy")),
    "cross_entropy_normal": (cross_entropy_results, ("logits", "targets")),
    "cross_entropy_extreme": (cross_entropy_results, ("logits", "targets")),
    "weighted_sum": (weighted_sum_results, ("x", "w", "dy")),
}


def new_ops():
    targets = torch.randint(1003, (19,))
    return {
        "rmsnorm": (random(23, 160), random(160), random(23, 160)),
        "rope": (random(2, 3, 11, 80),),
        "swiglu": (random(9, 224), random(9, 224), random(9, 224)),
        "cross_entropy_normal": (random(19, 1003), targets),
        "cross_entropy_extreme": (random(19, 1003, scale=3000), targets),
        "weighted_sum": (random(37, 100), random(100), random(37)),
    }


def new_attention(name):
    b, h, n, m, d, _ = ATTENTION[name]
    scale = 6.0 if name.startswith("peaky") else 1.0
    return (random(b, h, n, d, scale=scale), random(b, h, m, d, scale=scale),
            random(b, h, m, d), random(b, h, n, d))


def new_training(s):
    shapes = model.Shape(*(s[name] for name in (
        "vocab_size", "context_length", "d_model", "d_ff", "num_layers",
        "num_heads")))
    initial = {name: weight.to(F64)
               for name, weight in model.initial_weights(shapes).items()}
    count = s["steps"] * s["global_batch"] * s["context_length"] + 1
    # Three of four tokens follow from the one before, so there is something
    # to learn.
    tokens = torch.randint(s["vocab_size"], (count,))
    for i in torch.nonzero(torch.rand(count - 1) < 0.75).flatten().tolist():
        tokens[i + 1] = (5 * tokens[i] + 7) % s["vocab_size"]
    return initial, tokens


def store(group, values):
    for name, value in values.items():
        array = value.detach().numpy()
        if array.dtype == np.int64:
            array = array.astype(np.int32)
        elif name not in ("loss", "grad_norm", "lr"):
            array = array.astype(np.float32)
        group[name] = array


def write(path):
    torch.manual_seed(2024)
    with h5py.File(path, "w") as file:
        for name, case in ATTENTION.items():
            group = file.create_group("attention/" + name)
            causal = group.attrs["causal"] = case[-1]
            inputs = dict(zip(("q", "k", "v", "do"), new_attention(name)))
            store(group, inputs)
            store(group, attention_results(causal, **inputs))
        for name, values in new_ops().items():
            compute, inputs = OPS[name]
            group = file.create_group("ops/" + name)
            store(group, dict(zip(inputs, values)))
            store(group, compute(*values))
        for name, settings in TRAINING.items():
            group = file.create_group("training/" + name)
            group.attrs.update(settings)
            initial, tokens = new_training(settings)
            group["tokens"] = tokens.numpy().astype(np.uint16)
            store(group.create_group("initial"), initial)
            store(group, training_results(settings, initial, tokens))


def load(dataset):
    array = dataset[()]
    if np.issubdtype(array.dtype, np.integer):
        return torch.from_numpy(array.astype(np.int64))
    return torch.tensor(array, dtype=F64)


def difference(group, results):
    """Largest ‖a − b‖/‖b‖ over the results, in units of what it may be: the
    rounding of float32, or 1e-9 for what is stored in float64."""
    worst = 0.0
    for name, value in results.items():
        stored = load(group[name])
        allowed = 1e-9 if group[name].dtype == np.float64 else 1e-7
        error = (value.detach() - stored).norm() / stored.norm()
        worst = max(worst, float(error) / allowed)
    return worst


def check(path):
    differences = {}
    with h5py.File(path) as file:
        for name, group in file["attention"].items():
            inputs = {i: load(group[i]) for i in ("q", "k", "v", "do")}
            differences["attention/" + name] = difference(
                group, attention_results(bool(group.attrs["causal"]), **inputs))
        for name, group in file["ops"].items():
            compute, inputs = OPS[name]
            differences["ops/" + name] = difference(
                group, compute(*(load(group[i]) for i in inputs)))
        for name, group in file["training"].items():
            settings = {key: v.item() for key, v in group.attrs.items()}
            initial = {key: load(v) for key, v in group["initial"].items()}
            differences["training/" + name] = difference(
                group,
                training_results(settings, initial, load(group["tokens"])))
    for name, worst in differences.items():
        print(f"{name:32} {worst:8.3f} of the tolerance")
    return max(differences.values()) <= 1


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if not arguments.check:
        write(arguments.file)
    elif not check(arguments.file):
        sys.exit(f"error: {arguments.file} differs from what was recomputed")


if __name__ == "__main__":
    main()
