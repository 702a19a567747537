"""References: solutions of our own computation, in float64, by which problems are judged. Nothing is downloaded."""
