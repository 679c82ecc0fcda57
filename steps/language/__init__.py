"""Bodies of the steps that train a language model; `steps.run.kinds` names them."""
