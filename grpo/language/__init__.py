"""A language model as the policy. Other rooms import this one only when needed, because transformers takes seconds to load."""
