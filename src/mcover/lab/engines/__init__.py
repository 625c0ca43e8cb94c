"""Trials on a cluster: Dask, Ray or Slurm, behind the engine that studies and searches submit to.

Write ``run(plan, store, make_engine("dask", address="tcp://10.0.0.1:8786"))``.
"""

from mcover.lab.engines.options import EngineName, EngineOptions, make_engine

__all__ = ["EngineName", "EngineOptions", "make_engine"]
