"""How a command begins, talks and ends: signals, streams, messages, help. Imports no framework."""
