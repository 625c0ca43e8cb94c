import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_perceptron_example_runs(capsys):
    runpy.run_path(str(EXAMPLES / "perceptron.py"))["main"](n=41, alpha=2.0, reads=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["vanilla", "RSA", "M-cover"]
    assert all("(n = 2)" in line for line in lines)
