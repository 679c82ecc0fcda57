"""Chess tasks as text: prompts, tokenizer, parsing, graded reward."""
