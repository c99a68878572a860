"""A network of sign activations, whose gradient is zero almost everywhere: back-propagation cannot train it."""

import dladmm

data = dladmm.datasets.load("digits")
result = dladmm.train(
    dladmm.mlp([64, 400, 10], "sign"),
    data.x_train,
    data.y_train,
    validation=(data.x_test, data.y_test),
    regularizer={"name": "l2", "strength": 3.0},
    nu=10.0,
    damping=1.0,
    init_scale=1.0,
    max_iter=40,
)
hidden = result.module[:2](data.x_test)
print(
    f"test accuracy {result.history['val_accuracy'][-1]:.3f}; hidden units take the values {hidden.unique().tolist()}"
)
print(result.certificate)
