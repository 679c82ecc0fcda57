"""Bodies of the steps that train a language model; `STEP.variants` names them."""
