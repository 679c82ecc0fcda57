"""A language model as the policy; imported lazily, for transformers takes seconds."""
