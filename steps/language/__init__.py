"""Bodies of `pretrain` and `finetune` for a language model; `steps.run.kinds` names them."""
