"""What a person looks at: the table at the end of a run, and its figures."""
