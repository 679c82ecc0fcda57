"""Bodies of `pretrain` and `finetune` for language models; `steps.run.kinds` selects these modules."""
