"""Training of drafters: heads and small models that guess what a target says (docs/train.md).

Needs the extra `[train]`. Modules that import torch are imported when training begins, never before.
"""
