"""MLflow, fed from the journal by a process beside the run."""
