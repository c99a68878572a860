"""What people call: train and train_graph."""
