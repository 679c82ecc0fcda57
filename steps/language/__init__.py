"""Bodies of `pretrain` and `finetune` for language models."""
