"""Chess tasks as text: prompts, answers and their parsers, tokenizer, graded reward."""
