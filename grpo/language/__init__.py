"""A language model as the policy. Imported only when needed, because transformers takes seconds to load."""
