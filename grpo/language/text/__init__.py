"""Chess tasks as text: prompts, answers, parsers, the tokenizer, the graded reward."""
