"""Command `chess-grpo`: a parser, and one module per command."""
