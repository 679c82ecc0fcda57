"""Bodies of `pretrain` and `finetune`, named by `steps.run.kinds`."""
