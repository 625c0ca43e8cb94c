"""Exported collapses: torch.compile, torch.export and ONNX give the same outputs."""

import onnxruntime
import pytest
import torch
from torch import nn

import mcover
from mcover.errors import McoverError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning"),
]


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight  # tied

    def forward(self, tokens):
        return {"logits": self.head(self.body(self.embed(tokens)))}


def images(batch):
    return torch.randn(batch, 3, 6, 6, generator=torch.Generator().manual_seed(batch))


def tokens(batch):
    return torch.randint(0, 11, (batch, 5), generator=torch.Generator().manual_seed(batch))


CASES = {
    "convolutions": (Convolutions, images, "messages"),
    "attention": (Attention, tokens, "directed"),
}


@pytest.fixture(params=CASES)
def trained(request):
    """A collapse after some training, its inputs, and the covered model."""
    make, inputs, routing = CASES[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        covered = mcover.lift(make(), 3, mcover.Uniform(), routing, seed=0)
        optimizer = torch.optim.Adam(covered.parameters(), lr=1e-2)
        for batch in range(4, 8):
            optimizer.zero_grad()
            logits(covered(inputs(batch))).square().sum().backward()
            optimizer.step()
    return covered.collapse(), inputs, covered


def logits(outputs):
    return outputs["logits"] if isinstance(outputs, dict) else outputs


def assert_same(found, expected):
    torch.testing.assert_close(logits(found), logits(expected), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_export(trained, tmp_path):
    net, inputs, _ = trained
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(net, (inputs(2),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "net.pt2")
    read = torch.export.load(tmp_path / "net.pt2").module()
    for batch in (2, 5):
        assert_same(read(inputs(batch)), net(inputs(batch)))


@torch.no_grad()
def test_onnx(trained, tmp_path):
    net, inputs, _ = trained
    how = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim("batch")},), "verbose": False}
    torch.onnx.export(net, (inputs(2),), tmp_path / "net.onnx", **how)
    session = onnxruntime.InferenceSession(
        tmp_path / "net.onnx", providers=["CPUExecutionProvider"]
    )
    (name,) = (one.name for one in session.get_inputs())
    for batch in (2, 5):
        (found,) = session.run(None, {name: inputs(batch).numpy()})
        assert_same(torch.from_numpy(found), net(inputs(batch)))


def test_compile(trained):
    net, inputs, covered = trained
    # The example compiles with the default backend, which takes its time.
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for batch in (2, 5):
            assert_same(compiled(inputs(batch)), net(inputs(batch)))
    # It is an ordinary model: it trains on, and the covers do not notice.
    before = {name: stack.clone() for name, stack in covered.stacks().items()}
    logits(compiled.train()(inputs(3))).square().mean().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    for name, stack in covered.stacks().items():
        assert torch.equal(stack, before[name]), name


def test_covers_that_meet_are_not_exported():
    covered = mcover.lift(nn.Linear(4, 2), 3, mcover.Uniform(), "messages", seed=0).eval()
    with pytest.raises(McoverError, match=r"export covered\.collapse\(\)"):
        torch.export.export(covered, (torch.zeros(5, 4),))
