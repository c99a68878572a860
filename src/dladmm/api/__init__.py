"""The training functions: ``train`` for samples and ``train_graph`` for graphs."""
