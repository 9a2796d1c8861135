"""Weights to safetensors and back, and files that are not to be trusted."""

import json
import os
import random
import struct
import subprocess
import sys

import h5py
import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors.numpy")

from conftest import ROOT, train  # noqa: E402

TO = ROOT / "scripts" / "to_safetensors.py"
FROM = ROOT / "scripts" / "from_safetensors.py"


def run(script, *arguments):
    return subprocess.run([sys.executable, str(script), *map(str, arguments)],
                          capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    train(2, folder / "run.h5", "--steps", "3", "--sync", "fsdp",
          "--checkpoint", str(folder / "ck"),
          "--save-weights", str(folder / "w.h5"))
    return folder


def tensors_of(path, group="/"):
    with h5py.File(path) as file:
        return {name: data[()] for name, data in file[group].items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


def test_a_checkpoint_and_a_weight_file_give_the_same_tensors(folder):
    for source in ("ck/latest", "w.h5"):
        target = folder / "model.safetensors"
        done = run(TO, folder / source, target)
        assert done.returncode == 0, done.stderr
        assert_same(safetensors.load_file(target), tensors_of(folder / "w.h5"))
    assert_same(tensors_of(folder / "ck" / "latest", "weights"),
                tensors_of(folder / "w.h5"))


def test_a_run_starts_from_what_came_back(folder):
    assert run(TO, folder / "ck/latest", folder / "m.safetensors").returncode == 0
    assert run(FROM, folder / "m.safetensors", folder / "b.h5").returncode == 0
    train(1, folder / "f.h5", "--steps", "1", "--mode", "forward", "--init",
          str(folder / "b.h5"), "--save-weights", str(folder / "again.h5"))
    assert_same(tensors_of(folder / "again.h5"), tensors_of(folder / "w.h5"))


def test_bfloat16_becomes_fp32(tmp_path):
    bits = np.array([0x3F80, 0xC000, 0x3E99], dtype="<u2")
    header = json.dumps({"x": {"dtype": "BF16", "shape": [3],
                               "data_offsets": [0, 6]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bits.tobytes())
    done = run(FROM, tmp_path / "x.safetensors", tmp_path / "x.h5")
    assert done.returncode == 0, done.stderr
    assert tensors_of(tmp_path / "x.h5")["x"].tolist() == [
        1.0, -2.0, float(np.float32(0.298828125))]


def test_a_damaged_checkpoint_is_refused(folder, tmp_path):
    whole = (folder / "ck" / "latest").read_bytes()
    dice = random.Random(1)
    for _ in range(5):
        flipped = bytearray(whole)
        flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
        (tmp_path / "x.h5").write_bytes(flipped)
        done = run(TO, tmp_path / "x.h5", tmp_path / "x.safetensors")
        assert done.returncode == 1
        assert not (tmp_path / "x.safetensors").exists()


def header_of(**entries):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize("content", [
    b"", b"\x00" * 7, struct.pack("<Q", 1 << 62) + b"{}",
    header_of(x={"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 4]}),
    header_of(x={"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}),
    header_of(x={"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 40]}),
    header_of(**{"../x": {"dtype": "F32", "shape": [1],
                          "data_offsets": [0, 4]}}) + b"\0" * 4,
    struct.pack("<Q", 100000) + b"[" * 100000,
    b"\x80\x04cos\nsystem\n(S'touch pickled'\ntR.",
], ids=["empty", "short", "long header", "huge shape", "negative shape",
        "offsets outside", "a path as a name", "deep nesting", "a pickle"])
def test_a_hostile_safetensors_file_is_refused(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    done = run(FROM, tmp_path / "x.safetensors", tmp_path / "x.h5")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_a_link_out_of_the_file_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.ones(3, "<f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = h5py.ExternalLink("other.h5", "x")
    done = run(TO, tmp_path / "x.h5", tmp_path / "x.safetensors")
    assert done.returncode == 1 and "leads out of the file" in done.stderr
