"""A language model as the policy; needs the extra `language` and is imported lazily."""
