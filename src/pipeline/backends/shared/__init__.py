"""What the backends share: progress, traces, the breakdown of a step."""
