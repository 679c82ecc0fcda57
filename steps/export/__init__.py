"""A policy as safetensors and ONNX, with its model card."""
