"""A language model as the policy. Other packages import this package only when needed, because transformers takes seconds to load."""
