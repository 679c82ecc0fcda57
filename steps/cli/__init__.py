"""The command `chess-grpo`: a parser, and one module a command."""
