"""Errors with a specific remedy: one table, in a module for each subject.

Malformed arguments in general are the subject of ``test_fuzz.py``. What a model does in its forward
is refused in the tests of that behaviour, and what needs a file in those of the files.
"""
