"""References: solutions computed here, in float64, against which the problems are judged. Nothing is downloaded."""
