"""The two chess tasks of a language model as text: prompts, answers, parsers, the tokenizer, the graded reward."""
