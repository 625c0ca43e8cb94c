"""Errors with a specific remedy: the rows of ``tests/refusals``, one module for each subject."""

import pytest

from mcover import Custom, Directed, Identity, McoverError, lift, permutations
from mcover.errors import TooLargeError, UnreachableError
from refusals import annealing, binary, graphs, networks, optimizers, statistics, topologies
from refusals.rows import check_refusal, every_row
from tiny_models import Perceptron, tiny


@every_row(
    networks=networks.ROWS,
    binary=binary.ROWS,
    optimizers=optimizers.ROWS,
    topologies=topologies.ROWS,
    graphs=graphs.ROWS,
    annealing=annealing.ROWS,
    statistics=statistics.ROWS,
)
def test_what_is_refused_names_the_remedy(call, text):
    check_refusal(call, text)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: Custom([[1, 1, 0]] * 3), UnreachableError),
        (lambda: permutations.sample([[0, 1], [0, 1]], 1), UnreachableError),
        (lambda: permutations.sample([[1]], 10**15), TooLargeError),
        (lambda: Identity().matrix(10**7), TooLargeError),
    ],
)
def test_errors_say_what_kind_they_are(call, kind):
    with pytest.raises(kind):
        call()
    assert issubclass(kind, McoverError)
    assert issubclass(McoverError, ValueError)


def test_a_read_beyond_the_last_is_an_index_error():
    with pytest.raises(IndexError, match="there is no read 6; the result has 2"):
        annealing.result()[6]


def test_options_of_the_other_routing_cannot_be_written():
    with pytest.raises(TypeError):
        Directed(streams=2)
    with pytest.raises(TypeError):
        lift(tiny(Perceptron)[0], 3, Identity(), "directed", streams=2)
