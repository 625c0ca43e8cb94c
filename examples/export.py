"""Exports a trained collapse with torch.compile, torch.export and ONNX, and compares the outputs.

    python examples/export.py --output out

A collapse is an ordinary model of the base class, so each of these takes one line. Covers are for
training only: exporters cannot trace how they run. This example does not test whether covers
improve a network; examples/mlp.py compares such a network with plain ones.
"""

import argparse
from pathlib import Path

import onnxruntime
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits

import mcover


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("out"))
    given = parser.parse_args()

    digits = load_digits()
    pixels = torch.tensor(digits.images / 16, dtype=torch.float32)
    images, test, labels = pixels[:1437], pixels[1437:], torch.tensor(digits.target[:1437])
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    covered = mcover.lift(model, covers=3, seed=0)
    optimizer = torch.optim.AdamW(covered.parameters(), lr=2e-3)
    for _ in range(given.epochs):
        for batch in torch.randperm(len(labels)).split(64):
            loss = mcover.cover_loss(F.cross_entropy, covered(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    net = covered.collapse()
    given.output.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        expected = net(test)
        compiled = torch.compile(net)
        report("torch.compile", compiled(test), expected)

        batch = torch.export.Dim("batch")
        program = torch.export.export(net, (test[:2],), dynamic_shapes=({0: batch},))
        torch.export.save(program, given.output / "collapse.pt2")
        read = torch.export.load(given.output / "collapse.pt2").module()
        report("torch.export", read(test), expected)

        file = given.output / "collapse.onnx"
        shapes = {"dynamic_shapes": ({0: batch},), "dynamo": True}
        torch.onnx.export(net, (test[:2],), file, verbose=False, **shapes)
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (name,) = (one.name for one in session.get_inputs())
        (logits,) = session.run(None, {name: test.numpy()})
        report("onnxruntime", torch.from_numpy(logits), expected)


def report(what, logits, expected):
    apart = (logits - expected).abs().max().item()
    same = (logits.argmax(dim=1) == expected.argmax(dim=1)).float().mean().item()
    print(f"{what:13s}  largest difference of a logit {apart:.1e}, same answer on {same:.0%}")


if __name__ == "__main__":
    main()
