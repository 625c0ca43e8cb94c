"""The reproduction of the paper: data sets, models, training, studies, figures and results pages.

Run it from a clone: ``python -m reproduction list | run NAME | show NAME | pages``.
"""
