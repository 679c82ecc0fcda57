"""Cloning, the parse-rate gate, GRPO and measurements of a language model."""
