"""The table at the end of a run, and its figures."""
