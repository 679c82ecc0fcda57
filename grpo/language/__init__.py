"""A language model as the policy. Import this package only when needed, because transformers takes seconds to load."""
