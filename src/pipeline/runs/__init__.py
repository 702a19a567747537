"""A run on disk: journal, receipt, hashes of its code, what a training left, and how saved runs are found."""
