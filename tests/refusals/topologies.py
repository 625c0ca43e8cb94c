"""Topologies, and the draws of routes."""

import numpy as np

from mcover import Chain, Custom, GaussianRing, Identity, Uniform, mix, permutations
from mcover.permutations import TABLE_COVERS
from mcover.plain import from_plain
from mcover.routing import draw_bank, draw_indexed_bank, draw_mixers
from mcover.topology import Topology

ROWS = [
    ("a ring of width 0", lambda: GaussianRing(0),
     "sigma of GaussianRing is 0; write a number above 0"),
    ("an infinite shift", lambda: GaussianRing(1, shift=np.inf),
     "shift of GaussianRing is inf; write a finite"),
    ("a shift out of range", lambda: GaussianRing(shift=1e308),
     "from -4.29497e+09 to 4.29497e+09"),
    ("a ring too narrow", lambda: GaussianRing(1e-160, shift=0.3), "at least 1e-100"),
    ("an integer too long", lambda: Chain(10**400), "more than 20 digits"),
    ("a kernel that is not square", lambda: Custom([[1, 2, 3], [1, 2, 3]]), "square…(2, 3)"),
    ("a negative kernel", lambda: Custom([[1, -2], [1, 1]]), "entry (0, 1) is -2"),
    ("an infinite kernel", lambda: Custom([[1, np.inf], [1, 1]]), "finite"),
    ("an empty kernel", lambda: Custom(np.empty((0, 0))), "at least one cover"),
    ("a kernel of text", lambda: Custom([["1", "2"], ["3", "4"]]), "array of numbers"),
    ("a ragged kernel", lambda: Custom([[1, 2], [3]]), "array of numbers"),
    ("a kernel of other covers", lambda: Custom([[1, 1], [1, 1]]).matrix(3), "write covers=2"),
    ("a kernel without permutations", lambda: Custom([[1, 1, 0]] * 3), "no permutation…Uniform"),
    ("a kernel beyond the memory", lambda: Uniform().matrix(10**7),
     "kernel of 10000000 covers…fewer covers"),
    ("a plot of no covers", lambda: Uniform().plot(0), "covers is 0"),
    ("a mixture of nothing", lambda: mix(), "mix takes topologies"),
    ("weights of another number", lambda: mix(Uniform(), weights=[1, 2]),
     "one positive number for each"),
    ("weights with an infinite sum", lambda: mix(Uniform(), Identity(), weights=[1e308, 1e308]),
     "a finite sum"),
    ("a weight that is lost beside another",
     lambda: mix(Uniform(), Identity(), weights=[1e308, 5e-324]), "one positive number"),
    ("an unknown kind", lambda: from_plain(Topology, {"kind": "moebius"}),
     "of kind 'moebius'; write one of"),
    ("an unknown field", lambda: from_plain(Topology, {"kind": "ring", "width": 1}),
     "no width; its fields are"),
    ("a missing field", lambda: from_plain(Topology, {"kind": "custom"}), "needs values"),
    # Draws of routes.
    ("draws of a negative kernel", lambda: permutations.sample([[1, -1], [1, 1]], 1), "negative"),
    ("draws without permutations", lambda: permutations.sample([[0, 1], [0, 1]], 1),
     "no permutation"),
    ("draws beyond the memory", lambda: permutations.sample([[1]], 10**15), "draw fewer"),
    ("a route that repeats a cover", lambda: permutations.log_prob(np.ones((3, 3)), [0, 1, 1]),
     "permutations of"),
    ("a route of other covers", lambda: permutations.log_prob(np.ones((3, 3)), [0, 1]),
     "permutations of"),
    ("exact marginals of many covers",
     lambda: permutations.marginals(np.ones((TABLE_COVERS + 1,) * 2)), "average them"),
    ("a bank larger than its sources", lambda: draw_bank(Uniform(), 2, 5, 6), "write at most 5"),
    ("a bank of True sources", lambda: draw_bank(Uniform(), 2, True, 1), "sources is True"),
    ("an indexed bank larger than its sources", lambda: draw_indexed_bank(Uniform(), 2, 5, 6),
     "write at most 5"),
    ("an indexed bank of 5.0 sources", lambda: draw_indexed_bank(Uniform(), 2, 5.0, 1),
     "sources is 5.0"),
    ("mixers of no units", lambda: draw_mixers(Uniform(), 2, 0, 1, 1), "units is 0"),
]  # fmt: skip
