"""Files of covered models: their content, and the rejection of damaged or crafted files."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from covering import RING
from mcover import McoverError, lift
from mcover.nn import load
from mcover.nn.files import checksum
from tiny_models import Convolutional, Perceptron, Transformer, tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model, and the file of its covers."""
    model = tiny(Convolutional)[0]
    path = tmp_path_factory.mktemp("saved") / "covers"
    return model, lift(model, 3, RING, "directed", seed=0).save(path)


def header_of(path):
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["mcover"])


def rewrite(path, header, **changed):
    """The same file with another header, and with some tensors replaced.

    Its checksum is correct, as in a crafted file.
    """
    tensors = {
        name: value for name, value in (load_file(path) | changed).items() if value is not None
    }
    text = header if isinstance(header, str) else json.dumps(header)
    metadata = {"mcover": text, "crc32": checksum(text, tensors)}
    save_file(tensors, path, {} if header is None else metadata)


def test_files_hold_the_tied_weight_once_and_what_is_frozen(tmp_path):
    model = tiny(Transformer)[0]
    covered = lift(model, 3, RING, "messages", select=["embed", "feed"], freeze=True, seed=7)
    path = covered.save(tmp_path / "a")
    assert path == tmp_path / "a.safetensors"
    names = load_file(path)
    assert ("net.embed.weight" in names) != ("net.head.weight" in names)
    loaded = load(path, model)
    assert loaded.net.head.weight is loaded.net.embed.weight
    trained = [[p.requires_grad for p in one.parameters()] for one in (loaded, covered)]
    assert trained[0] == trained[1]
    assert header_of(path)["settings"] == {
        "covers": 3,
        "topology": {"kind": "ring", "shift": 2.0},
        "routing": {"kind": "messages"},
        "noise": covered.settings.noise,
    }


def test_files_that_do_not_fit_are_refused(saved, tmp_path):
    _, path = saved
    for file, model, message in (
        (tmp_path / "b", tiny(Convolutional)[0], "does not exist"),
        (path, tiny(Perceptron)[0], r"that this tiny_models.Perceptron does not have"),
        (path, tiny(Convolutional)[0].float(), "same architecture and dtype"),
    ):
        with pytest.raises(McoverError, match=message):
            load(file, model)


def test_crafted_files_are_refused_before_anything_uses_them(saved, tmp_path):
    """Each raises McoverError: no other exception, and no file is accepted."""
    model, good = saved
    header, whole = header_of(good), good.read_bytes()
    state, settings = bytes(load_file(good)["_extra_state"].tolist()), header["settings"]

    def encoded(**changes):
        text = json.dumps(json.loads(state) | changes)
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    headers = [
        None, "", "[", "[" * 100_000, "null", "3", [], {}, {"format": 99}, {"format": []},
        *({k: v for k, v in header.items() if k != lost} for lost in header),
        *(header | {name: wrong} for name in header for wrong in (None, 3.5, {}, [3], [[1]])),
        header | {"lifted": []}, header | {"lifted": ["norm.running_mean"]},
        header | {"lifted": ["nothing.weight"]}, header | {"state": ["out.weight"]},
        header | {"tied": [["net.out.weight", "nowhere"]]}, header | {"unknown": 1},
        *(header | {"settings": settings | changes} for changes in (
            {"covers": 4}, {"covers": 10**9}, {"covers": 0}, {"covers": True}, {"covers": "3"},
            {"topology": None}, {"topology": {"kind": "none"}},
            {"topology": {"kind": "ring", "sigma": -1}},
            {"routing": {"kind": "weights"}}, {"routing": {"kind": "directed", "bank": 3}},
            {"routing": {"kind": "messages"}}, {"noise": []}, {"extra": 1},
            {"topology": {"kind": []}}, {"topology": {"kind": {}}}, {"routing": {"kind": [3]}},
            {"topology": {"kind": "ring", "sigma": 10**400}}, {"noise": 10**400}, {"covers": 10**6},
            {"topology": {"kind": "ring", "sigma": [[]]}}, {"topology": [[[]]]},
        )),
    ]  # fmt: skip
    tensors = [
        {"net.out.weight": None}, {"net.other": torch.zeros(2)},
        {"net.out.weight": torch.zeros(3, 1)},
        {"net.norm.running_mean": torch.zeros(3, 4)}, {"_extra_state": None},
        {"_extra_state": torch.zeros(3)}, {"_extra_state": torch.full((9,), 91, dtype=torch.uint8)},
        *({"_extra_state": encoded(**changes)} for changes in (
            {"steps": -1}, {"redraws": 1.5}, {"redraws": 1}, {"entropy": -1}, {"entropy": "x"},
            {"entropy": None}, {"spawn_key": 3}, {"spawn_key": [[]]}, {"checksum": None},
        )),
    ]  # fmt: skip
    path = tmp_path / "bad.safetensors"
    for given, changed in [(each, {}) for each in headers] + [(header, each) for each in tensors]:
        path.write_bytes(whole)
        rewrite(path, given, **changed)
        try:
            load(path, model)
        except McoverError:
            continue
        pytest.fail(f"accepted: {given} {changed}")
    rewrite_of_covers = header | {"settings": settings | {"covers": 4}}
    path.write_bytes(whole)
    rewrite(path, rewrite_of_covers)  # compared with the tensors before anything is copied
    with pytest.raises(McoverError, match=r"its header says 4 covers, and '.*' has the shape \(3,"):
        load(path, model)


def test_damaged_files_and_odd_paths_are_refused(saved, tmp_path):
    model, good = saved
    whole, path = good.read_bytes(), tmp_path / "bad.safetensors"
    raw = [whole[:n] for n in (0, 4, 8, 100, len(whole) - 1)]
    for content in (*raw, b"\xff" * 200, b"\xff" * 7 + b"\x7f" + whole[8:]):
        path.write_bytes(content)
        with pytest.raises(McoverError, match=r"bad\.safetensors cannot be read"):
            load(path, model)
    rng = np.random.default_rng(0)
    for place in rng.integers(len(whole), size=300):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        with pytest.raises(McoverError, match=r"bad\.safetensors"):
            load(path, model)
    (tmp_path / "folder.safetensors").mkdir()
    for odd in (tmp_path / "folder", tmp_path, "", ".", "/", "a\0b", "x" * 300, None, 3, b"a"):
        with pytest.raises(McoverError):
            load(odd, model)


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    covered = lift(tiny(Perceptron)[0], 3, RING, "messages", seed=0)
    path = covered.save(tmp_path / "a")
    before = path.read_bytes()
    mask = os.umask(0o022)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with torch.no_grad():
        covered.net.out.weight.zero_()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(McoverError, match=r"a\.safetensors: No space left"):
        covered.save(tmp_path / "a")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
