"""References: solutions of our own computation, in float64, against which the problems are judged. Nothing is downloaded."""
