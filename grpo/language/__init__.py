"""A language model as the policy. Needs the extra `language`; nothing outside imports it before a run asks for it."""
