"""Bodies of `pretrain` and `finetune` for a language model; `STEP.variants` names them."""
